package setup

import (
	"bytes"
	"fmt"
)

// The lines around what setup adds to a file that may have comments.
const (
	blockBegins = "# Begin: tsugiki setup. tsugiki setup --undo removes these lines.\n"
	blockEnds   = "# End: tsugiki setup.\n"
)

func block(text string) []byte { return []byte(blockBegins + text + blockEnds) }

// cutBlock returns a text without the block of setup.
func cutBlock(text []byte) ([]byte, error) {
	begin := bytes.Index(text, []byte(blockBegins))
	if begin < 0 {
		return text, nil
	}
	length := bytes.Index(text[begin:], []byte(blockEnds))
	if length < 0 {
		return nil, fmt.Errorf("the line %q is missing; remove the lines by hand", blockEnds[:len(blockEnds)-1])
	}
	before, after := text[:begin], text[begin+length+len(blockEnds):]
	// addContainerd puts a newline before its block, because a file need not end with one.
	before = bytes.TrimSuffix(before, []byte("\n"))
	return append(bytes.Clone(before), after...), nil
}

// ownFile returns the add function of an engine whose configuration may have several files: one of
// them is ours.
func ownFile(entry func(runtime string) string) func([]byte, string, bool) ([]byte, error) {
	return func(text []byte, runtime string, _ bool) ([]byte, error) {
		rest, err := cutBlock(text)
		if err == nil && len(rest) > 0 {
			err = fmt.Errorf("%w %s: setup has not written this file", ErrForeign, Name)
		}
		return block(entry(runtime)), err
	}
}

func podmanText(runtime string) string {
	return fmt.Sprintf("[engine.runtimes]\ntsugiki = [%q]\n", runtime)
}

func crioText(runtime string) string {
	return fmt.Sprintf("[crio.runtime.runtimes.tsugiki]\nruntime_path = %q\nruntime_type = \"oci\"\n", runtime)
}
