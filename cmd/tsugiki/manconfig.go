package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tsugiki/tsugiki/internal/config"
)

const configIntroduction = `The file configures tsugiki agent and tsugiki-runtime; without it all keys have their
defaults. It is TOML. What is wrong in it is said with its line, and the agent does
not start: unknown keys, values of other types, rules that cannot be.

The agent reads it when it starts. Starting it anew leaves containers alone, and their
connections.`

const configContainers = `[[container]] may be there several times. The first one counts whose pattern matches a
container's name, and only where the container's own annotations have no rules:
those are tsugiki.dev/mode, tsugiki.dev/endpoints, tsugiki.dev/ingress and
tsugiki.dev/egress, the last three with commas, semicolons or newlines between entries.

[[allow]] may be there several times, too. The first one counts that has a container's
engine and a pattern of its name. It says which annotations are heard, and what they may
ask for. A container is not started whose annotations ask for more. Without an [[allow]] none
is heard. What an image brings is never heard.`

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

// writeConfigPage writes the page of the configuration.
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
