package oci

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
)

func TestParseCommand(t *testing.T) {
	for line, want := range map[string]command{
		"": {}, "--version": {}, "features": {name: "features"},
		"--root /r --log /l --log-format json create --bundle /b --pid-file /p ID": {root: "/r", log: "/l", logFormat: "json", name: "create", bundle: "/b", id: "ID"},
		"--root=/r --systemd-cgroup -log /l run -b /b --preserve-fds 2 -d ID":      {root: "/r", log: "/l", name: "run", bundle: "/b", detach: true, id: "ID"},
		"create --no-pivot --console-socket /c ID":                                 {name: "create", id: "ID"},
		"create -- ID":       {name: "create", id: "ID"},
		"run ID --bundle /b": {name: "run", id: "ID"},
		"exec --process /p --detach --pid-file /q ID":                   {name: "exec", process: "/p", processAt: 2, id: "ID"},
		"exec --process=/p ID":                                          {name: "exec", process: "/p", processAt: 1, processPrefix: "--process=", id: "ID"},
		"--debug exec -t -e A=B --cap NET_ADMIN -c=CAP_KILL ID sh -p x": {name: "exec", caps: []string{"NET_ADMIN", "CAP_KILL"}, id: "ID"},
		"delete --force ID":                                             {name: "delete", force: true, id: "ID"},
		"delete -f=false ID":                                            {name: "delete", id: "ID"},
		"--cgroup-manager cgroupfs --log-level debug kill ID 9":         {name: "debug", id: "kill"},
		"--root /r state ID":                                            {root: "/r", name: "state", id: "ID"},
		"--log":                                                         {}, "create --bundle": {name: "create"}, "create -": {name: "create", id: "-"},
	} {
		got := parseCommand(strings.Fields(line))
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(command{})); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", line, diff)
		}
	}
}

// grafted returns an answer of the agent for a grafted container.
var grafted = api.Registered{
	Graft: true, Name: "web", Token: "token", Listener: "/run/l.sock", Filter: api.Filter{Mode: "auto"}, Library: "/usr/lib/tsugiki",
}

func TestEdit(t *testing.T) {
	s, err := parseSpec([]byte(`{"ociVersion":"1.0","new":{"b":1.0,"a":1e3},"process":{"args":["x"],"env":["A=B","LD_PRELOAD=a.so"],"later":7},
		"mounts":[{"destination":"/dev","type":"tmpfs","later":true}],"linux":{"later":[1],"namespaces":[{"type":"network"}],
		"seccomp":{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["read","connect"],"action":"SCMP_ACT_ALLOW"}]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.refuse(); err != nil {
		t.Fatal(err)
	}
	config, preload, err := s.edit(grafted)
	if err != nil {
		t.Fatal(err)
	}
	if preload != "/dev/tsugiki/preload/$LIB/libtsugiki.so" {
		t.Errorf("preload is %q", preload)
	}
	var got map[string]any
	if err := json.Unmarshal(config, &got); err != nil {
		t.Fatal(err)
	}
	seccomp := got["linux"].(map[string]any)["seccomp"].(map[string]any)
	if seccomp["listenerPath"] != "/run/l.sock" || seccomp["listenerMetadata"] != "token" {
		t.Errorf("seccomp: %v", seccomp)
	}
	delete(got["linux"].(map[string]any), "seccomp")
	want := map[string]any{
		"ociVersion": "1.0", "new": map[string]any{"b": 1.0, "a": 1e3},
		"process": map[string]any{"args": []any{"x"}, "env": []any{"A=B", "LD_PRELOAD=a.so:" + preload}, "later": 7.0},
		"mounts": []any{
			map[string]any{"destination": "/dev", "type": "tmpfs", "later": true},
			map[string]any{"destination": "/dev/tsugiki", "type": "bind", "source": "/usr/lib/tsugiki", "options": []any{"bind", "ro", "nosuid", "nodev"}},
		},
		"linux": map[string]any{"later": []any{1.0}, "namespaces": []any{map[string]any{"type": "network"}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if !strings.Contains(string(config), `"new":{"b":1.0,"a":1e3}`) {
		t.Errorf("what we do not know was written anew: %s", config)
	}
}

func TestRefuse(t *testing.T) {
	linux := func(more string) string { return `"linux":{"namespaces":[{"type":"network"}` + more + `]}}` }
	caps := func(set, name string) string {
		return `"process":{"capabilities":{"` + set + `":["CAP_KILL","` + name + `"]}},`
	}
	for name, tt := range map[string]struct{ config, want string }{
		"fine":                     {`{"process":{},` + linux(""), ""},
		"host network":             {`{"process":{},"linux":{}}`, "host's network namespace"},
		"host network by its path": {`{"process":{},"linux":{"namespaces":[{"type":"network","path":"/proc/self/ns/net"}]}}`, "host's network namespace"},
		"bounding":                 {`{` + caps("bounding", "CAP_NET_ADMIN") + linux(""), "CAP_NET_ADMIN"},
		"ambient, in short":        {`{` + caps("ambient", "net_admin") + linux(""), "CAP_NET_ADMIN"},
		"inheritable":              {`{` + caps("inheritable", "CAP_NET_ADMIN") + linux(""), "CAP_NET_ADMIN"},
		"the host's users by path": {`{` + caps("effective", "CAP_NET_ADMIN") + linux(`,{"type":"user","path":"/proc/self/ns/user"}`), "CAP_NET_ADMIN"},
		"users of its own":         {`{` + caps("permitted", "CAP_NET_ADMIN") + linux(`,{"type":"user"}`), ""},
		"windows":                  {`{"windows":{},"process":{},` + linux(""), `"windows"`},
		"a machine":                {`{"vm":{},"process":{},` + linux(""), `"vm"`},
		"not linux":                {`{"process":{}}`, `without "linux"`},
		"no process":               {`{` + linux(""), `without "process"`},
	} {
		s, err := parseSpec([]byte(tt.config))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		switch err := s.refuse(); {
		case err == nil && tt.want != "", err != nil && (tt.want == "" || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	for name, config := range map[string]string{
		"two of a name":      `{"linux":{},"Linux":{}}`,
		"env in two ways":    `{"process":{"ENV":[]}}`,
		"unknown in seccomp": `{"linux":{"seccomp":{"defaultAction":"SCMP_ACT_ALLOW","deny":["all"]}}}`,
		"no object":          `[]`, "null": `null`, "nothing": ``, "half": `{"linux":`,
	} {
		if _, err := parseSpec([]byte(config)); err == nil {
			t.Errorf("%s: was read", name)
		}
	}
}

func TestIDs(t *testing.T) {
	for config, want := range map[string][2]int{
		`{}`:                                     {0, 0},
		`{"process":{"user":{"uid":7,"gid":8}}}`: {7, 8},
		`{"process":{"user":{"uid":7,"gid":8}},"linux":{"namespaces":[{"type":"user"}],"uidMappings":[{"containerID":0,"hostID":1000,"size":5},{"containerID":5,"hostID":2000,"size":5}],"gidMappings":[{"containerID":8,"hostID":3000,"size":1}]}}`: {2002, 3000},
		`{"process":{"user":{"uid":7}},"linux":{"namespaces":[{"type":"user"}],"uidMappings":[{"containerID":0,"hostID":1000,"size":5}]}}`:                                                                                                           {-1, -1},
	} {
		s, err := parseSpec([]byte(config))
		if err != nil {
			t.Fatal(err)
		}
		uid, gid, err := s.ids()
		if err != nil {
			uid, gid = -1, -1
		}
		if uid != want[0] || gid != want[1] {
			t.Errorf("%s: %d %d %v, want %v", config, uid, gid, err, want)
		}
	}
}

func TestFindRuntime(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink(self, filepath.Join(dir, "runc")), os.Symlink("/bin/true", filepath.Join(dir, "crun"))); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	for _, tt := range []struct{ configured, environment, want string }{
		{"", "", filepath.Join(dir, "crun")}, // the other is ourselves
		{"/bin/true", "crun", "/bin/true"},
		{"", "crun", filepath.Join(dir, "crun")},
		{"runc", "", ""},
		{"/nonexistent", "crun", ""},
	} {
		got, err := findRuntime(tt.configured, tt.environment)
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%q, %q: %q, %v; want %q", tt.configured, tt.environment, got, err, tt.want)
		}
	}
	// Engines may call us without a PATH.
	usual := usualDirs
	defer func() { usualDirs = usual }()
	usualDirs = []string{dir}
	t.Setenv("PATH", "")
	if got, err := findRuntime("", ""); got != filepath.Join(dir, "crun") {
		t.Errorf("found %q, %v without a PATH", got, err)
	}
	usualDirs = nil
	if got, err := findRuntime("", ""); err == nil {
		t.Errorf("found %q nowhere", got)
	}
}

func TestRestoreConfig(t *testing.T) {
	for name, tt := range map[string]struct {
		after func(path string) error
		want  string
	}{
		"ours":      {func(string) error { return nil }, "old"},
		"another's": {func(path string) error { return os.WriteFile(path, []byte("newer"), 0o600) }, "newer"},
		"removed":   {os.Remove, ""},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, configFile)
		if err := os.WriteFile(path, []byte("old"), 0o640); err != nil {
			t.Fatal(err)
		}
		if err := replaceConfig(dir, []byte("new")); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(path)
		if got, _ := os.ReadFile(path); err != nil || string(got) != "new" || st.Mode().Perm() != 0o640 {
			t.Fatalf("%s: replaced by %q, %v, %v", name, got, st.Mode(), err)
		}
		if err := tt.after(path); err != nil {
			t.Fatal(err)
		}
		if err := restoreConfig(dir, hash([]byte("new"))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, _ := os.ReadFile(path); string(got) != tt.want {
			t.Errorf("%s: restored %q, want %q", name, got, tt.want)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "*tsugiki*")); name != "removed" && left != nil {
			t.Errorf("%s: left behind: %v", name, left)
		}
	}
}

func TestExecProcess(t *testing.T) {
	preloads := &state{Preload: "/x.so", HostUser: true}
	for _, tt := range []struct {
		st       *state
		in, want string // "" is an error, "same" a process that stays as it is
	}{
		{preloads, `{"args":["a"],"later":1.0}`, `{"args":["a"],"env":["LD_PRELOAD=/x.so"],"later":1.0}`},
		{preloads, `{"env":["LD_PRELOAD=/x.so"]}`, `{"env":["LD_PRELOAD=/x.so"]}`},
		{preloads, `{"env":["LD_PRELOAD="]}`, `{"env":["LD_PRELOAD=/x.so"]}`},
		{preloads, `{"capabilities":{"effective":["CAP_NET_RAW"]}}`, `{"capabilities":{"effective":[]},"env":["LD_PRELOAD=/x.so"]}`},
		{preloads, `{"capabilities":{"bounding":["CAP_NET_ADMIN"]}}`, ""},
		{preloads, `{"Env":[]}`, ""},
		{preloads, `{"capabilities":{"Bounding":["CAP_NET_RAW"]}}`, ""},
		{preloads, `7`, ""},
		{&state{HostUser: true}, `{"env":["A=B"],"capabilities":{"bounding":["CAP_KILL"]}}`, "same"},
		{&state{HostUser: true}, `{"capabilities":null}`, "same"},
		{
			&state{HostUser: true},
			`{"capabilities":{"bounding":["CAP_KILL","CAP_NET_RAW"],"ambient":["net_raw"],"permitted":["NET_RAW","CAP_CHOWN"],"inheritable":["CAP_NET_RAW"],"effective":null,"later":1.0}}`,
			`{"capabilities":{"ambient":[],"bounding":["CAP_KILL"],"effective":null,"inheritable":[],"later":1.0,"permitted":["CAP_CHOWN"]}}`,
		},
		{&state{}, `{"capabilities":{"bounding":["CAP_NET_RAW","CAP_NET_ADMIN"]}}`, "same"}, // of a user namespace of its own
	} {
		o, changed, err := editedProcess([]byte(tt.in), tt.st)
		data, _ := json.Marshal(o)
		got := string(data)
		switch {
		case err != nil:
			got = ""
		case !changed:
			got = "same"
		}
		if got != tt.want {
			t.Errorf("%s: became %s, %v; want %s", tt.in, got, err, tt.want)
		}
	}
}

// readFile does not wait for a path that is no regular file.
func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	fifo, file := filepath.Join(dir, "fifo"), filepath.Join(dir, "file")
	if err := errors.Join(unix.Mkfifo(fifo, 0o600), os.WriteFile(file, []byte("text"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, dir, "/dev/zero", filepath.Join(dir, "nothing")} {
		if data, err := readFile(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: read %d bytes, %v", path, len(data), err)
		}
	}
	if data, err := readFile(file); err != nil || string(data) != "text" {
		t.Errorf("read %q, %v", data, err)
	}
}
