package docs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// mention is a command that a page names and no test runs: in a sentence, or in a block that is not run.
type mention struct {
	page string
	line int
	text string
}

func (m mention) String() string { return fmt.Sprintf("%s:%d: %s", m.page, m.line, m.text) }

var (
	inline = regexp.MustCompile("`([^`]+)`")
	ours   = regexp.MustCompile(`^(?:\$ |# )?(?:sudo )?((?:tsugiki|make)(?: .*)?)$`)
)

// mentionsOf returns the commands of a page that stand in its sentences.
func mentionsOf(t *testing.T, root, page string) []mention {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	var sentences strings.Builder // the page, with an empty line for each line of a block
	inside := false
	for _, l := range strings.Split(string(data), "\n") {
		if fence := strings.HasPrefix(l, "```"); fence {
			inside = !inside
		} else if !inside {
			sentences.WriteString(l)
		}
		sentences.WriteByte('\n')
	}
	var list []mention
	text := sentences.String()
	for _, at := range inline.FindAllStringSubmatchIndex(text, -1) {
		span := strings.Join(strings.Fields(text[at[2]:at[3]]), " ")
		if m := ours.FindStringSubmatch(span); m != nil {
			list = append(list, mention{page, 1 + strings.Count(text[:at[0]], "\n"), m[1]})
		}
	}
	return list
}

// mentions returns the commands of a block that is not run.
func (b block) mentions() (list []mention) {
	for _, l := range strings.Split(strings.ReplaceAll(b.text, "\\\n", ""), "\n") {
		command, _, _ := strings.Cut(l, " #")
		if m := ours.FindStringSubmatch(strings.TrimSpace(command)); m != nil {
			list = append(list, mention{b.page, b.line, m[1]})
		}
	}
	return list
}

// A command that no test runs as it is printed exists at least, with the options that it is given:
// those in sentences, and those in blocks that are not run.
func TestMentionedCommands(t *testing.T) {
	bin, err := testkit.Binaries()
	if err != nil {
		t.Fatal(err)
	}
	root, err := testkit.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	var all []mention
	for _, page := range pages {
		all = append(all, mentionsOf(t, root, page)...)
	}
	each(t, func(b block) {
		if b.isCommand() && b.not != "" {
			all = append(all, b.mentions()...)
		}
	})
	if len(all) < 50 {
		t.Errorf("%d commands are mentioned", len(all))
	}
	h := helps{program: filepath.Join(bin, "tsugiki"), texts: map[string]string{}}
	for _, m := range all {
		words := strings.Fields(m.text)
		var err error
		if words[0] == "make" {
			err = isTarget(root, words[1:])
		} else {
			err = h.explain(words[1:])
		}
		if err != nil {
			t.Errorf("%s: %v", m, err)
		}
	}
}

// isTarget tells whether make would do something for its arguments, without doing it.
func isTarget(root string, args []string) error {
	if len(args) == 0 {
		return nil // the program itself is meant
	}
	if out, err := exec.Command("make", append([]string{"-n", "-C", root}, args...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// helps has the help texts of tsugiki's commands.
type helps struct {
	program string
	texts   map[string]string
}

// of returns the help text of a command, which is named by its words.
func (h *helps) of(words []string) (string, error) {
	name := strings.Join(words, " ")
	if text, known := h.texts[name]; known {
		return text, nil
	}
	out, err := exec.Command(h.program, append(words, "--help")...).Output()
	if err != nil {
		return "", fmt.Errorf("tsugiki %s --help: %w", name, err)
	}
	h.texts[name] = string(out)
	return string(out), nil
}

// explain looks for a command and its options in the help texts.
func (h *helps) explain(args []string) error {
	var command []string
	text, err := h.of(nil)
	for err == nil && len(args) > 0 && hasCommand(text, args[0]) {
		command, args = append(command, args[0]), args[1:]
		text, err = h.of(command)
	}
	if err != nil {
		return err
	}
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") && strings.Contains(text, "\nAvailable Commands:\n") {
		return fmt.Errorf("%s has no command %s", strings.Join(append([]string{"tsugiki"}, command...), " "), args[0])
	}
	for _, arg := range args {
		if arg == "--" {
			break
		}
		option, _, _ := strings.Cut(arg, "=")
		if !strings.HasPrefix(option, "-") || option == "-" {
			continue
		}
		if !regexp.MustCompile(`(?m)^ +(-\w, )?` + regexp.QuoteMeta(option) + `\b`).MatchString(text) {
			return fmt.Errorf("%s has no option %s", strings.Join(append([]string{"tsugiki"}, command...), " "), option)
		}
	}
	return nil
}

// hasCommand tells whether a help text lists a command.
func hasCommand(text, name string) bool {
	return regexp.MustCompile(`(?m)^  ` + regexp.QuoteMeta(name) + `  +\w`).MatchString(text)
}
