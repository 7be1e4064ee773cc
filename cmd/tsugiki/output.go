package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"
)

// Formats in which a command can print, besides its usual table.
const (
	formatJSON = "json"
	formatYAML = "yaml"
	formatWide = "wide" // the table with more columns
)

// output is the format that the flags -o and -j choose: one of formats, or "" for a table.
type output struct {
	format  string
	formats []string
}

// register defines -o with these formats, and -j, which is -o json.
func (o *output) register(cmd *cobra.Command, formats ...string) {
	o.formats = formats
	flags := cmd.Flags()
	flags.VarP(o, "output", "o", "print "+o.choice())
	flags.VarPF(jsonFlag{o}, "json", "j", "print JSON, as -o json").NoOptDefVal = "true"
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
}

func (o *output) choice() string {
	last := len(o.formats) - 1
	if last == 0 {
		return o.formats[0]
	}
	return strings.Join(o.formats[:last], ", ") + " or " + o.formats[last]
}

// String, Set and Type implement pflag.Value.
func (o *output) String() string { return o.format }

func (o *output) Set(format string) error {
	if !slices.Contains(o.formats, format) {
		return fmt.Errorf("write -o %s", strings.Join(o.formats, "|"))
	}
	o.format = format
	return nil
}

func (o *output) Type() string { return strings.Join(o.formats, "|") }

// jsonFlag is -j.
type jsonFlag struct{ *output }

func (j jsonFlag) String() string { return "" }

func (j jsonFlag) Set(value string) error {
	if value == "true" {
		j.format = formatJSON
	}
	return nil
}

func (j jsonFlag) Type() string { return "bool" }

func (o *output) wide() bool { return o.format == formatWide }

// isTable says that write calls its function.
func (o *output) isTable() bool { return o.format == "" || o.wide() }

// write prints a value in the format, or calls table.
func (o *output) write(out io.Writer, value any, table func() error) error {
	switch o.format {
	case formatJSON:
		return writeJSON(out, value)
	case formatYAML:
		return writeYAML(out, value)
	}
	return table()
}

func writeJSON(out io.Writer, value any) error {
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(value)
}

// writeYAML prints a value with the keys, and in the order, of its JSON: JSON is YAML.
func writeYAML(out io.Writer, value any) error {
	var data bytes.Buffer
	err := writeJSON(&data, value)
	var node yaml.Node
	if err == nil {
		err = yaml.Unmarshal(data.Bytes(), &node)
	}
	if err != nil {
		return err
	}
	asBlocks(&node)
	e := yaml.NewEncoder(out)
	e.SetIndent(2)
	if err := e.Encode(&node); err != nil {
		return err
	}
	return e.Close()
}

// asBlocks takes away the style of JSON. Quotes stay where a text would otherwise be read as
// something else.
func asBlocks(n *yaml.Node) {
	n.Style = 0
	for _, c := range n.Content {
		asBlocks(c)
	}
}
