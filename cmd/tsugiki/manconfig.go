package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tsugiki/tsugiki/internal/config"
)

const configIntroduction = `The file configures tsugiki agent and tsugiki-runtime. Without it, all keys have their
defaults. The format is TOML. For unknown keys, wrong values and wrong rules, the agent
prints errors with their lines and does not start.

The agent reads the file when it starts. At SIGHUP it reads the log level, [[allow]],
[[container]] and [[guest]] again. A restart of the agent leaves containers and their connections
alone.`

const configContainers = `The file may have several [[container]] tables. The first one whose pattern matches a
container's name applies. It applies only to a container without rules in its
annotations tsugiki.dev/mode, tsugiki.dev/endpoints, tsugiki.dev/ingress and
tsugiki.dev/egress, and without those of a translation. In the lists, commas, semicolons
or newlines separate entries. docs/CONFIG.md describes each annotation.

The file may have several [[allow]] tables. The first one that has a container's engine
and a pattern of its name applies. It lists the annotations that the agent follows, and
limits what they may ask for. A container whose annotations ask for more does not start.
Without an [[allow]] table, the agent refuses annotations. It never follows those of an
image.`

const configExample = `  [log]
  level = "debug"

  [[allow]]
  engines = ["docker"]
  names = ["*"]
  annotations = ["egress", "ingress"]
  destinations = ["0.0.0.0/0"]
  addresses = ["198.51.100.1"]

  [[container]]
  match = "web-*"
  ingress = ["0.0.0.0:80=198.51.100.1:8080"]
  egress = ["0.0.0.0/0=198.51.100.1", "10.0.0.1:5432=db"]
  endpoints = ["db type unix path /run/postgresql/.s.PGSQL.5432"]`

// writeConfigPage writes the manual page of the configuration file.
func writeConfigPage(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "tsugiki-agent.toml.5"), configPage(), 0o644)
}

func configPage() []byte {
	var b bytes.Buffer
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line(`.TH "TSUGIKI\-AGENT.TOML" 5 "" "Tsugiki" "Tsugiki"`)
	line(".SH NAME\ntsugiki\\-agent.toml \\- configuration of tsugiki agent")
	line(".SH SYNOPSIS\n.I %s", escape(config.DefaultPath))
	line(".SH DESCRIPTION")
	prose(&b, configIntroduction)
	table := ""
	line(".SH KEYS")
	for _, k := range config.Keys() {
		if k.Table != table {
			table = k.Table
			line(".SS %s", config.Header(table))
		}
		line(".TP\n\\fB%s\\fR = \\fI%s\\fR", escape(k.Name), escape(k.Kind))
		text := k.Text
		if k.Default != "" {
			text += fmt.Sprintf(" The default is %s.", k.Default)
		}
		line("%s", escape(text))
	}
	line(".PP")
	prose(&b, configContainers)
	line(".SH EXAMPLES")
	prose(&b, configExample)
	line(".SH SEE ALSO\n.BR tsugiki (1),\n.BR tsugiki\\-run (1)")
	return b.Bytes()
}
