package docs

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"gopkg.in/yaml.v3"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// pages are the documents for users.
var pages = []string{"README.md", "docs/RUNTIME.md", "docs/KUBERNETES.md", "docs/CONFIG.md", "docs/CHARGE.md", "docs/DENSITY.md", "docs/VM.md", "examples/README.md"}

// block is a fenced block of a page.
type block struct {
	page   string
	line   int    // of its fence
	info   string // after the fence
	text   string
	not    string // why it is not run; empty: it is
	engine string // with which it is run
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

var (
	notRun  = regexp.MustCompile(`^<!-- not run here: (.+) -->$`)
	runWith = regexp.MustCompile(`^<!-- run with: ([a-z]+) -->$`)
)

// blocksOf returns the blocks of a page.
func blocksOf(t *testing.T, root, page string) []block {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	var list []block
	inside, before := false, ""
	for i, l := range strings.Split(string(data), "\n") {
		info, fence := strings.CutPrefix(l, "```")
		switch {
		case fence && inside:
			inside = false
		case fence:
			b := block{page: page, line: i + 1, info: info}
			if m := notRun.FindStringSubmatch(before); m != nil {
				b.not = m[1]
			} else if m := runWith.FindStringSubmatch(before); m != nil {
				b.engine = m[1]
			} else if strings.HasPrefix(before, "<!--") {
				t.Errorf("%s:%d: the comment is neither of those that are known: %s", page, i, before)
			}
			list, inside = append(list, b), true
		case inside:
			list[len(list)-1].text += l + "\n"
		case strings.HasPrefix(l, "    ") && strings.TrimSpace(l) != "":
			t.Errorf("%s:%d: write a fenced block", page, i+1)
		}
		before = l
	}
	return list
}

func (b block) isCommand() bool { return b.info == "" || b.info == "sh" || b.info == "console" }

// each calls fn for all blocks.
func each(t *testing.T, fn func(b block)) {
	t.Helper()
	root, err := testkit.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		for _, b := range blocksOf(t, root, page) {
			fn(b)
		}
	}
}

// Each block that is not a command can be read as what it says it is, and a test that is named in
// place of a run exists.
func TestBlocks(t *testing.T) {
	names := testNames(t)
	read := map[string]func([]byte, any) error{"json": json.Unmarshal, "toml": toml.Unmarshal, "yaml": yaml.Unmarshal, "xml": elements}
	each(t, func(b block) {
		for _, name := range regexp.MustCompile(`\bTest[A-Z]\w*`).FindAllString(b.not, -1) {
			if !names[name] {
				t.Errorf("%s: there is no %s", b, name)
			}
		}
		unmarshal := read[b.info]
		switch {
		case unmarshal != nil:
			for _, document := range strings.Split(b.text, "\n---\n") {
				var got any
				if err := unmarshal([]byte(document), &got); err != nil || got == nil {
					t.Errorf("%s: %v: %v", b, got, err)
				}
			}
		case b.info != "text" && b.info != "go" && !b.isCommand():
			t.Errorf("%s: nothing is known of %q", b, b.info)
		}
	})
}

// elements reads XML whose elements are closed. It sets what it is given to their number.
func elements(text []byte, number any) error {
	n := 0
	for d := xml.NewDecoder(bytes.NewReader(text)); ; n++ {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
	}
	*number.(*any) = n
	return nil
}

// testNames are those of all tests of the module.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	root, err := testkit.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test[A-Z]\w*)\(`)
	err = filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(data, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
