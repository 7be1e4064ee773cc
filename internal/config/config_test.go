package config

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "agent.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// defaults is an empty configuration, with changes.
func defaults(change func(*Config)) *Config {
	c := &Config{
		RunDir: "/run/tsugiki", StateDir: "/var/lib/tsugiki", Log: Log{slog.LevelInfo, "text"},
		Charge: Charge{Enabled: true, Placement: true, Discovery: true},
	}
	change(c)
	return c
}

func TestLoad(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       *Config
	}{
		{"empty", "", defaults(func(*Config) {})},
		{"comments", "# nothing\n\n[log]\n# level = \"x\"\n", defaults(func(*Config) {})},
		{
			"all",
			`run_dir = "/r"
state_dir = '/s'
[log]
level = "debug"
format = "json"
[metrics]
listen = "[::1]:9100"
[runtime]
path = "/usr/bin/crun"
[[container]]
match = "web-*"
mode = "seccomp"
endpoints = ["a type unix path /a"]
ingress = [
	"0.0.0.0:80=198.51.100.1", # the first
	'''
b''',

	"c",
]
egress = []
[[container]]
match = "*"
translate = true
ipv6 = "2001:db8::9"
dns = ["[2001:db8::53]:53"]
pool = "10.18.0.0/15"
ftp = "none"
sip = "5060,5062"
`,
			defaults(func(c *Config) {
				c.RunDir, c.StateDir = "/r", "/s"
				c.Log, c.Metrics.Listen, c.Runtime.Path = Log{slog.LevelDebug, "json"}, "[::1]:9100", "/usr/bin/crun"
				c.Containers = []Container{
					{
						Match: "web-*", Mode: "seccomp", Line: 10, Endpoints: []Text{{"a type unix path /a", 13}},
						Ingress: []Text{{"0.0.0.0:80=198.51.100.1", 15}, {"b", 16}, {"c", 19}},
					},
					{Match: "*", Line: 22, Translate: true, IPv6: "2001:db8::9", DNS: []Text{{"[2001:db8::53]:53", 26}}, Pool: "10.18.0.0/15", FTP: "none", SIP: "5060,5062"},
				}
			}),
		},
		{
			"allow",
			`[[allow]]
engines = ["docker", "other"]
names = ["web-*"]
annotations = ["egress",
	"ingress", "endpoints", "mode", "name"]
unknown_origin = true
destinations = ["0.0.0.0/0"]
special = ["loopback", "link-local", "multicast", "broadcast", "unspecified"]
addresses = ["198.51.100.1"]
ports = ["80", "1024-2047"]
types = ["unix"]
nameable = true
netns = ["blue", "/run/netns/b*"]
paths = ["/run/app/*.sock", "/srv/sockets/"]
resolvers = ["127.0.0.53:53"]
[[allow]]
names = ["*"]
engines = []
types = []
ports = []
`,
			defaults(func(c *Config) {
				c.Allows = []Allow{
					{
						Engines: []Text{{"docker", 2}, {"other", 2}}, Names: []Text{{"web-*", 3}},
						Annotations:   []Text{{"egress", 4}, {"ingress", 5}, {"endpoints", 5}, {"mode", 5}, {"name", 5}},
						UnknownOrigin: true, Destinations: []Text{{"0.0.0.0/0", 7}},
						Special:   []Text{{"loopback", 8}, {"link-local", 8}, {"multicast", 8}, {"broadcast", 8}, {"unspecified", 8}},
						Addresses: []Text{{"198.51.100.1", 9}}, Ports: []Text{{"80", 10}, {"1024-2047", 10}}, Types: []Text{{"unix", 11}},
						Nameable: true, Netns: []Text{{"blue", 13}, {"/run/netns/b*", 13}}, Paths: []Text{{"/run/app/*.sock", 14}, {"/srv/sockets/", 14}},
						Resolvers: []Text{{"127.0.0.53:53", 15}},
						Line:      1,
					},
					{Engines: []Text{}, Names: []Text{{"*", 17}}, Types: []Text{}, Ports: []Text{}, Line: 16},
				}
			}),
		},
		{
			"other ways to write it",
			"log.level = \"warn\"\ncharge = { placement = false, shared = [\"dockerd\"] }\nmetrics = { listen = \"127.0.0.1:1\" }\n\"run_dir\" = \"/\\u0061\"\r\n" +
				"container = [{match = \"a\", egress = ['x']}, {match = \"b\"},\n {match = \"c\"}]\n",
			defaults(func(c *Config) {
				c.Log.Level, c.Metrics.Listen, c.RunDir = slog.LevelWarn, "127.0.0.1:1", "/a"
				c.Containers = []Container{{Match: "a", Egress: []Text{{"x", 5}}, Line: 5}, {Match: "b", Line: 5}, {Match: "c", Line: 6}}
				c.Charge.Placement, c.Charge.Shared = false, []Text{{"dockerd", 2}}
			}),
		},
	} {
		file := write(t, tt.text)
		got, err := Load(file)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		tt.want.Path = file
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// All that is wrong is said, each with its line.
func TestLoadSaysWhatIsWrong(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"syntax", "run_dir = \"/r\"\nlog = [\n", []string{":2:7: array is incomplete"}},
		{"no value", "\n\nrun_dir =\n", []string{":3:10: "}},
		{"unknown key", "run-dirr = \"/r\"", []string{`:1:1: unknown key "run-dirr"; did you mean run_dir?`}},
		{"unknown key, nothing like it", "[log]\ncolour = true", []string{`:2:1: unknown key "colour"; there are format and level`}},
		{"key of a table", "level = \"info\"", []string{`:1:1: unknown key "level"; it belongs below [log]`}},
		{"dotted unknown key", "log.levell = \"info\"\na.b = 1", []string{`:1:5: unknown key "levell"; did you mean level?`, `:2:1: unknown key "a.b"; there are run_dir and state_dir`}},
		{"unknown table", "[logs]\nlevel = 3\n[log]\nlevel = 3", []string{`:1:2: unknown table "logs"; there are allow, charge, container, guest, kubernetes, log, metrics and runtime`, ":4:9: log.level must be a string, not an integer"}},
		{"table of a key", "[log.level]\n", []string{`:1:2: unknown table "log.level"`}},
		{"key for a table", "log = \"info\"\ncontainer = 3", []string{":1:1: log is a table; write [log]", ":2:1: container is an array of tables; write [[container]]"}},
		{"one container", "[container]\nmatch = \"*\"", []string{":1:2: container is an array of tables; write [[container]]"}},
		{"dotted container", "container.match = \"*\"", []string{":1:1: container is an array of tables"}},
		{"container of something else", "container = [\n3]", []string{":2:1: container is an array of tables"}},
		{"several logs", "[[log]]", []string{":1:3: log is one table, not an array of tables; write [log]"}},
		{"twice", "run_dir = \"/a\"\nrun_dir = \"/b\"", []string{":2:1: run_dir is written twice, first on line 1"}},
		{"table twice", "[log]\n[log]", []string{":2:2: [log] is written twice, first on line 1"}},
		{"twice in a container", "[[container]]\nmatch = \"*\"\nmode = \"auto\"\nmode = \"auto\"", []string{":4:1: container.mode is written twice, first on line 3"}},
		{
			"types",
			"run_dir = 1\nstate_dir = true\n[log]\nlevel = 1.5\nformat = [\"text\"]\n[metrics]\nlisten = {a = 1}\n[runtime]\npath = 2026-01-01\n[[container]]\nmatch = \"*\"\negress = \"x\"\ningress = [\n\"a\",\n3,\n[\"b\"]]",
			[]string{
				":1:11: run_dir must be a string, not an integer", ":2:1: state_dir must be a string, not a boolean",
				":4:9: log.level must be a string, not a number", ":5:1: log.format must be a string, not an array",
				":7:10: metrics.listen must be a string, not a table", ":9:1: runtime.path must be a string, not a date",
				":12:10: container.egress must be an array of strings, not a string",
				":13:1: container.ingress must be an array of strings; one element is an array",
				":15:1: container.ingress must be an array of strings; one element is an integer",
			},
		},
		{
			"values",
			"run_dir = \"run\"\nstate_dir = \"/a\\u0000b\"\n[log]\nlevel = \"loud\"\nformat = \"xml\"\n[metrics]\nlisten = \":9100\"\n[runtime]\npath = \"runc\"\n[[container]]\nmatch = \"[\"\nmode = \"magic\"",
			[]string{
				`:1:11: run_dir "run" is not an absolute path; it must begin with a slash`, `:2:13: state_dir "/a\x00b" has a control character`,
				`:4:9: log.level "loud" is unknown; there are debug, info, warn and error`, `:5:10: log.format "xml" is unknown; there are text and json`,
				`:7:10: metrics.listen ":9100" is not ADDR:PORT`, `:9:8: runtime.path "runc" is not an absolute path; it must begin with a slash`,
				`:11:9: container.match "[" is not a pattern: * matches any characters, ? one character, [a-z] one of these, and \* an asterisk`, `:12:8: container.mode "magic" is unknown; there are auto, preload and seccomp`,
			},
		},
		{
			"allow",
			"[[allow]]\nengines = [\"dokcer\"]\nnames = [\"[\"]\nannotations = [\"tsugiki.dev/egress\"]\nspecial = [\"localhost\"]\ntypes = [\"ipv4\",\n\"unx\"]\n" +
				"nameable = \"yes\"\nnetns = [\"\"]\npaths = [\"run\", \"/a/../b\", \"/\", \"/a//\", \"/[\"]\naddresses = \"::\"\nports = [80]\ndestinations = [\"\"]\n[[allow]]\n[allow]\n",
			[]string{
				`:2:12: allow.engines "dokcer" is unknown; there are docker, podman, containerd, nerdctl, cri and other`,
				`:3:10: allow.names "[" is not a pattern: * matches any characters, ? one character, [a-z] one of these, and \* an asterisk`, `:4:16: allow.annotations "tsugiki.dev/egress" is unknown; there are dns, egress, endpoints, ftp, ingress, ipv6, mode, name, name-rules, sip and translate`,
				`:5:12: allow.special "localhost" is unknown`, `:7:1: allow.types "unx" is unknown`, ":8:12: allow.nameable must be true or false, not a string",
				`:9:10: allow.netns "" matches nothing`, `:10:10: allow.paths "run" is not an absolute path; it must begin with a slash`, `:10:17: allow.paths "/a/../b" is not a clean path: write it without //, . and .., and below a folder`,
				`:10:28: allow.paths "/" is not a clean path: write it without //, . and .., and below a folder`, `:10:33: allow.paths "/a//" is not a clean path: write it without //, . and .., and below a folder`, `:10:41: allow.paths "/[" is not a pattern: * matches any characters, ? one character, [a-z] one of these, and \* an asterisk`,
				":11:13: allow.addresses must be an array of strings, not a string", ":12:10: allow.ports must be an array of strings; one element is an integer",
				`:13:17: allow.destinations "" is empty`, ":14: [[allow]] has no engines; there are docker, ", ":14: [[allow]] has no names; ",
				":15:2: allow is an array of tables; write [[allow]]",
			},
		},
		{"ports", "[metrics]\nlisten = \"127.0.0.1:65536\"", []string{":2:10: metrics.listen"}},
		{"no port", "[metrics]\nlisten = \"127.0.0.1:0\"", []string{":2:10: metrics.listen"}},
		{"no match", "[[container]]\nmode = \"auto\"\n\n[[container]]\nmatch = \"\"", []string{":1: [[container]] has no match", `:5:9: container.match "" matches nothing`}},
		{"not UTF-8", "run_dir = \"/\xff\"", []string{":1:13: "}},
		{"no boolean", "[charge]\nburst = \"yes\"\nsoftirq = 1", []string{":2:9: charge.burst must be true or false, not a string", ":3:11: charge.softirq must be true or false, not an integer"}},
		{"nested for ever", "a = " + strings.Repeat("[", sizeMax-4), []string{": the file has more than 100000 brackets"}},
	} {
		file := write(t, tt.text)
		c, err := Load(file)
		if err == nil || c != nil {
			t.Errorf("%s: %+v, %v", tt.name, c, err)
			continue
		}
		got := strings.Split(err.Error(), "\n")
		if len(got) != len(tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
			continue
		}
		for i := range got {
			if !strings.HasPrefix(got[i], file+tt.want[i]) {
				t.Errorf("%s: %q, want %q", tt.name, got[i], tt.want[i])
			}
		}
	}
}

func TestLoadFile(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "agent.toml")
	if _, err := Load(missing); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), missing) {
		t.Errorf("a missing file: %v", err)
	}
	if _, err := Load(t.TempDir()); err == nil {
		t.Error("a folder is no error")
	}
	if _, err := Load(write(t, strings.Repeat("#", sizeMax))); err != nil {
		t.Errorf("a file as large as may be: %v", err)
	}
	if _, err := Load(write(t, strings.Repeat("#", sizeMax+1))); err == nil || !strings.Contains(err.Error(), "larger") {
		t.Errorf("a larger file: %v", err)
	}
}

func TestFor(t *testing.T) {
	c := &Config{Containers: []Container{{Match: "web-?", Line: 1}, {Match: "w*", Line: 2}, {Match: "[a-c]*", Line: 3}}}
	for name, line := range map[string]int{"web-1": 1, "web-10": 2, "w": 2, "db": 0, "cache": 3, "": 0, "W": 0} {
		got := 0
		if found := c.For(name); found != nil {
			got = found.Line
		}
		if got != line {
			t.Errorf("%s: the entry on line %d, want %d", name, got, line)
		}
	}
}

func TestAllowFor(t *testing.T) {
	entry := func(line int, engines, names string) Allow {
		a := Allow{Line: line}
		for _, e := range strings.Fields(engines) {
			a.Engines = append(a.Engines, Text{e, line})
		}
		for _, n := range strings.Fields(names) {
			a.Names = append(a.Names, Text{n, line})
		}
		return a
	}
	c := &Config{Allows: []Allow{
		entry(1, "cri", "kube-system.*"), entry(2, "docker podman", "web-? db"), entry(3, "cri docker", "*"), entry(4, "", "*"), entry(5, "other", ""),
	}}
	for _, tt := range []struct {
		engine, name string
		line         int
	}{
		{"cri", "kube-system.dns.main", 1},
		{"cri", "default.web.main", 3},
		{"docker", "web-1", 2},
		{"docker", "db", 2},
		{"docker", "web-10", 3},
		{"podman", "db", 2},
		{"podman", "web", 0},
		{"other", "x", 0},
		{"", "db", 0},
		{"containerd", "db", 0},
		{"cri", "kube-system", 3},
	} {
		got := 0
		if a := c.AllowFor(tt.engine, tt.name); a != nil {
			got = a.Line
		}
		if got != tt.line {
			t.Errorf("%s %s: the entry on line %d, want %d", tt.engine, tt.name, got, tt.line)
		}
	}
	if (&Config{}).AllowFor("docker", "web") != nil {
		t.Error("there is an entry without a configuration")
	}
}

// What is packaged is accepted, says nothing, and neither is anything wrong with
// what it has in comments.
func TestPackagedFile(t *testing.T) {
	data, err := os.ReadFile("../../packaging/agent.toml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := parse("agent.toml", data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(defaults(func(c *Config) { c.Path = "agent.toml" }), c); diff != "" {
		t.Errorf("it changes something (-default +packaged):\n%s", diff)
	}
	var examples []string
	for l := range strings.Lines(string(data)) {
		if example, is := strings.CutPrefix(l, "#"); is && !strings.HasPrefix(example, " ") {
			l = example
		}
		examples = append(examples, l)
	}
	c, err = parse("agent.toml", []byte(strings.Join(examples, "")))
	if err != nil {
		t.Fatal(err)
	}
	if c.RunDir != DefaultRunDir || c.StateDir != DefaultStateDir || c.Log != (Log{slog.LevelInfo, "text"}) ||
		!c.Charge.Enabled || !c.Charge.Placement || c.Charge.Burst || !c.Charge.Discovery || c.Charge.Softirq {
		t.Errorf("what it says to be the defaults is %+v", c)
	}
	if c.Metrics.Listen == "" || c.Runtime.Path == "" || len(c.Charge.Shared) == 0 || c.Charge.Within == "" || len(c.Containers) == 0 || len(c.Containers[0].Ingress) == 0 || len(c.Allows) == 0 || len(c.Allows[0].Destinations) == 0 {
		t.Errorf("not all keys are in it: %+v", c)
	}
}

// Each key is in docs/CONFIG.md, as it is in the manual page.
func TestDocumented(t *testing.T) {
	data, err := os.ReadFile("../../docs/CONFIG.md")
	if err != nil {
		t.Fatal(err)
	}
	data, _, _ = bytes.Cut(data, []byte("\n## The controller of a DPU's switch\n")) // another file's keys follow
	rows := regexp.MustCompile("(?m)^\\| (`\\[+[a-z]+\\]+` )?\\| `[a-z0-9_]+` \\|").FindAll(data, -1)
	if len(rows) != len(Keys()) {
		t.Errorf("%d rows for %d keys", len(rows), len(Keys()))
	}
	for _, k := range Keys() {
		table, value := "", ""
		if k.Table != "" {
			table = "`" + Header(k.Table) + "` "
		}
		if k.Default != "" {
			value = "`" + k.Default + "` "
		}
		row := "| " + table + "| `" + k.Name + "` | " + k.Kind + " | " + value + "| " + k.Text + " |\n"
		if !strings.Contains(string(data), row) {
			t.Errorf("there is no %s", row)
		}
	}
}
