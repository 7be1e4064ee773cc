package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/tsugiki/tsugiki/internal/programs"
)

// documented are the programs beside tsugiki that users name.
var documented = []string{"tsugiki-runtime", "tsugiki-log"}

// writeProgramPages writes a manual page for each of these programs, from what its --help prints.
func writeProgramPages(dir string) error {
	for _, name := range documented {
		path, err := programs.Find(name)
		var text []byte
		if err == nil {
			text, err = exec.Command(path, "--help").Output()
		}
		var page []byte
		if err == nil {
			page, err = programPage(name, string(text))
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name+".1"), page, 0o644)
		}
		if err != nil {
			return fmt.Errorf("page of %s: %w", name, err)
		}
	}
	return nil
}

// programPage makes a page of a help text. Its first line is "NAME - SUMMARY". A line without
// indentation that ends with a colon and has indented lines below it is a heading.
func programPage(name, help string) ([]byte, error) {
	first, rest, _ := strings.Cut(help, "\n")
	summary, ok := strings.CutPrefix(first, name+" - ")
	if !ok {
		return nil, fmt.Errorf("the help text begins with %q", first)
	}
	var b bytes.Buffer
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line(`.TH "%s" 1 "" "Tsugiki" "Tsugiki"`, strings.ToUpper(escape(name)))
	line(`.SH NAME`)
	line(`%s \- %s`, escape(name), escape(summary))
	for _, paragraph := range strings.Split(strings.TrimSpace(rest), "\n\n") {
		heading, body, _ := strings.Cut(paragraph, "\n")
		switch {
		case heading == "Usage:":
			line(".SH SYNOPSIS")
		case strings.HasSuffix(heading, ":") && strings.HasPrefix(body, "  "):
			line(".SH %s", strings.ToUpper(escape(strings.TrimSuffix(heading, ":"))))
		default:
			line(".SH DESCRIPTION")
			body = paragraph
		}
		prose(&b, body)
	}
	line(".SH SEE ALSO\n.BR tsugiki (1)")
	return b.Bytes(), nil
}
