package install

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tree writes files, by path. A text that begins with -> is a link's.
func tree(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		err := os.Remove(path)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			if target, is := strings.CutPrefix(text, "->"); is {
				err = os.Symlink(target, path)
			} else {
				err = os.WriteFile(path, []byte(text), 0o755)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// read is what tree writes. Of the record, no text is read.
func read(t *testing.T, root string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, text := strings.TrimPrefix(path, root), ""
		if e.Type() == fs.ModeSymlink {
			text, err = os.Readlink(path)
			text = "->" + text
		} else if e.Name() != recordFile {
			var data []byte
			data, err = os.ReadFile(path)
			text = string(data)
		}
		files[name] = text
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

const containerdText = "version = 2\nroot = \"/x\" # ours\n"

// node is a node with containerd, and an image of two programs.
func node(t *testing.T) Options {
	t.Helper()
	dir := t.TempDir()
	o := Options{
		Image: filepath.Join(dir, "image"), Root: filepath.Join(dir, "node"), Config: filepath.Join(dir, "agent.toml"),
		Containerd: "/etc/containerd/config.toml", Log: slog.New(slog.DiscardHandler),
	}
	tree(t, o.Image, map[string]string{Prefix + "/bin/tsugiki": "1", Prefix + "/bin/tsugiki-cni": "cni 1", Prefix + "/lib/tsugiki/gate": "1", Prefix + "/lib/tsugiki/preload/lib/x.so": "->../../x.so"})
	tree(t, dir, map[string]string{"agent.toml": "a = 1\n"})
	tree(t, o.Root, map[string]string{o.Containerd: containerdText, "/opt/other": ""})
	return o
}

func install(t *testing.T, o Options) {
	t.Helper()
	if err := Install(o); err != nil {
		t.Fatal(err)
	}
}

func want(t *testing.T, o Options, want map[string]string) {
	t.Helper()
	want = maps.Clone(want)
	want["/opt/other"] = ""
	if diff := cmp.Diff(want, read(t, o.Root)); diff != "" {
		t.Errorf("the node's files (-want +got):\n%s", diff)
	}
}

func TestInstallation(t *testing.T) {
	o := node(t)
	install(t, o)
	told, err := os.ReadFile(o.node(o.Containerd))
	if err != nil || !strings.HasPrefix(string(told), containerdText) || !strings.Contains(string(told), `BinaryName = "/opt/tsugiki/bin/tsugiki-runtime"`) {
		t.Errorf("containerd's configuration: %v\n%s", err, told)
	}
	installed := map[string]string{
		Prefix + "/bin/tsugiki": "1", Prefix + "/bin/tsugiki-cni": "cni 1", Prefix + "/lib/tsugiki/gate": "1", Prefix + "/lib/tsugiki/preload/lib/x.so": "->../../x.so",
		Prefix + "/installed.json": "", agentConfig: "a = 1\n", o.Containerd: string(told),
	}
	want(t, o, installed)

	// Another image: a file has changed, one is gone, one is new. Nothing else is written.
	gate := o.node(Prefix + "/lib/tsugiki/gate")
	before, err := os.Stat(gate)
	if err != nil {
		t.Fatal(err)
	}
	running, err := os.Open(o.node(Prefix + "/bin/tsugiki"))
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	tree(t, o.Image, map[string]string{Prefix + "/bin/tsugiki": "2", Prefix + "/new/a": "1", Prefix + "/lib/tsugiki/preload/lib/x.so": "->../x.so"})
	tree(t, filepath.Dir(o.Config), map[string]string{"agent.toml": "a = 2\n"})
	install(t, o)
	installed[Prefix+"/bin/tsugiki"], installed[Prefix+"/new/a"], installed[Prefix+"/lib/tsugiki/preload/lib/x.so"] = "2", "1", "->../x.so"
	installed[agentConfig] = "a = 2\n"
	want(t, o, installed)
	if after, err := os.Stat(gate); err != nil || !os.SameFile(before, after) {
		t.Errorf("a file that is the same was written: %v", err)
	}
	if text, err := io.ReadAll(running); err != nil || string(text) != "1" {
		t.Errorf("a program that runs has become %q, %v", text, err)
	}
	if err := os.RemoveAll(filepath.Join(o.Image, Prefix, "new")); err != nil {
		t.Fatal(err)
	}
	install(t, o)
	delete(installed, Prefix+"/new/a")
	want(t, o, installed)
	if _, err := os.Stat(o.node(Prefix + "/new")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty folder is left: %v", err)
	}

	if err := Uninstall(o); err != nil {
		t.Fatal(err)
	}
	want(t, o, map[string]string{o.Containerd: containerdText})
	for _, gone := range []string{Prefix, filepath.Dir(agentConfig)} {
		if _, err := os.Stat(o.node(gone)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", gone, err)
		}
	}
	if err := Uninstall(o); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

func TestForeignFiles(t *testing.T) {
	o := node(t)
	tree(t, o.Root, map[string]string{agentConfig: "of the package\n"})
	before := read(t, o.Root)
	if err := Install(o); !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "agent.install=false") {
		t.Errorf("the package's configuration: %v", err)
	}
	if diff := cmp.Diff(before, read(t, o.Root)); diff != "" {
		t.Errorf("something was written:\n%s", diff)
	}

	// One that is equal is of somebody else, too. A link leads elsewhere in a container.
	o = node(t)
	tree(t, o.Root, map[string]string{agentConfig: "a = 1\n"})
	install(t, o)
	if err := Uninstall(o); err != nil {
		t.Fatal(err)
	}
	want(t, o, map[string]string{o.Containerd: containerdText, agentConfig: "a = 1\n"})
	tree(t, o.Root, map[string]string{agentConfig: "->/nix/store/agent.toml"})
	before = read(t, o.Root)
	if err := Install(o); !errors.Is(err, ErrForeign) {
		t.Errorf("the agent's configuration is a link: %v", err)
	}
	if diff := cmp.Diff(before, read(t, o.Root)); diff != "" {
		t.Errorf("something was written:\n%s", diff)
	}

	o = node(t)
	install(t, o)
	tree(t, o.Root, map[string]string{agentConfig: "changed by hand\n"})
	if err := Install(o); !errors.Is(err, ErrForeign) {
		t.Errorf("a configuration that was changed: %v", err)
	}
	if err := Uninstall(o); err != nil {
		t.Fatal(err)
	}
	want(t, o, map[string]string{o.Containerd: containerdText, agentConfig: "changed by hand\n"})

	o = node(t)
	tree(t, o.Root, map[string]string{o.Containerd: "->/nix/store/config.toml"})
	if err := Install(o); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("containerd's configuration is a link: %v", err)
	}

	o = node(t)
	tree(t, o.Root, map[string]string{Prefix + "/installed.json": `{"files": ["../../etc/passwd"]}`})
	if err := Uninstall(o); err == nil || !strings.Contains(err.Error(), "not in the folder") {
		t.Errorf("a record that leads elsewhere: %v", err)
	}
}

// The agent of a node that has the programs does not wait for whoever repairs containerd's file.
func TestInstallGoesOnWithoutContainerd(t *testing.T) {
	o := node(t)
	foreign := map[string]string{o.Containerd: "version ="}
	tree(t, o.Root, foreign)
	if err := Install(o); err == nil {
		t.Error("the first time, nothing has failed")
	}
	tree(t, o.Root, map[string]string{o.Containerd: containerdText})
	install(t, o)
	tree(t, o.Root, foreign)
	tree(t, o.Image, map[string]string{Prefix + "/bin/tsugiki": "2"})
	var said strings.Builder
	o.Log = slog.New(slog.NewTextHandler(&said, nil))
	install(t, o)
	if now := read(t, o.Root); now[Prefix+"/bin/tsugiki"] != "2" || now[o.Containerd] != foreign[o.Containerd] || !strings.Contains(said.String(), "level=ERROR") {
		t.Errorf("%q, and the log is %q", now, said.String())
	}
}

// A node that the first version has installed on is brought to this one, and all is removed.
func TestRecordOfFirstVersion(t *testing.T) {
	for _, upgrade := range []bool{true, false} {
		o := node(t)
		install(t, o)
		record := fmt.Sprintf(`{"files": ["bin/tsugiki", "bin/tsugiki-cni", "lib/tsugiki/gate", "lib/tsugiki/preload/lib/x.so"], "configs": [%q]}`, digest([]byte("a = 1\n")))
		tree(t, o.Root, map[string]string{Prefix + "/installed.json": record})
		if upgrade {
			tree(t, filepath.Dir(o.Config), map[string]string{"agent.toml": "a = 2\n"})
			install(t, o)
			if now := read(t, o.Root)[agentConfig]; now != "a = 2\n" {
				t.Errorf("the agent's configuration is %q", now)
			}
		}
		if err := Uninstall(Options{Root: o.Root, Log: o.Log}); err != nil {
			t.Fatal(err)
		}
		want(t, o, map[string]string{o.Containerd: containerdText})
	}
}

// The folder that should have the node's files is never made.
func TestNoRoot(t *testing.T) {
	o := node(t)
	o.Root = filepath.Join(t.TempDir(), "none")
	if err := Install(o); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), o.Root) {
		t.Errorf("no root: %v", err)
	}
	if _, err := os.Lstat(o.Root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it was made: %v", err)
	}
}

// containerd's configuration has become a link since. It stays, and all else is removed.
func TestContainerdLinkedSince(t *testing.T) {
	o := node(t)
	install(t, o)
	tree(t, o.Root, map[string]string{o.Containerd: "->/nix/store/config.toml"})
	var said strings.Builder
	o.Log = slog.New(slog.NewTextHandler(&said, nil))
	if err := Uninstall(o); err != nil || !strings.Contains(said.String(), "remove our runtimes by hand") {
		t.Errorf("%v, and the log is %s", err, said.String())
	}
	want(t, o, map[string]string{o.Containerd: "->/nix/store/config.toml"})
}

// A tool has written containerd's configuration anew, without comments. Our tables are known by their program.
func TestContainerdWithoutMarks(t *testing.T) {
	o := translating(t)
	before := read(t, o.Root)[o.Containerd]
	install(t, o)
	var lines []string
	for line := range strings.Lines(read(t, o.Root)[o.Containerd]) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	tree(t, o.Root, map[string]string{o.Containerd: strings.Join(lines, "")})
	if err := Uninstall(o); err != nil {
		t.Fatal(err)
	}
	if now := read(t, o.Root)[o.Containerd]; strings.Contains(now, "tsugiki") || !strings.HasPrefix(now, before) {
		t.Errorf("containerd's configuration is\n%s", now)
	}
}

// The record of the first version does not say that containerd was left alone. A block of tsugiki setup, whose
// program is the package's, stays.
func TestBlockOfAnotherProgram(t *testing.T) {
	o := node(t)
	change, err := o.engine(o.Containerd).Add("/usr/bin/tsugiki-runtime")
	if err == nil {
		err = change.Apply()
	}
	if err != nil {
		t.Fatal(err)
	}
	tree(t, o.Root, map[string]string{Prefix + "/installed.json": `{"files": [], "configs": []}`})
	if err := Uninstall(o); err != nil {
		t.Fatal(err)
	}
	want(t, o, map[string]string{o.Containerd: string(change.After)})
}

// On a node with the package, containerd's entry is of tsugiki setup. No record, no removal.
func TestUninstallWithoutRecord(t *testing.T) {
	o := node(t)
	change, err := o.engine(o.Containerd).Add("/usr/bin/tsugiki-runtime")
	if err == nil {
		err = change.Apply()
	}
	if err != nil {
		t.Fatal(err)
	}
	before := read(t, o.Root)
	if err := Uninstall(o); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, read(t, o.Root)); diff != "" {
		t.Errorf("something was removed:\n%s", diff)
	}
}

// Whoever has containerd configured elsewhere, or an agent's configuration, leaves these out.
func TestInstallProgramsAlone(t *testing.T) {
	o := node(t)
	o.Config, o.Containerd = "", ""
	install(t, o)
	want(t, o, map[string]string{
		Prefix + "/bin/tsugiki": "1", Prefix + "/bin/tsugiki-cni": "cni 1", Prefix + "/lib/tsugiki/gate": "1", Prefix + "/lib/tsugiki/preload/lib/x.so": "->../../x.so",
		Prefix + "/installed.json": "", "/etc/containerd/config.toml": containerdText,
	})
}
