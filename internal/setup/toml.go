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
// them is ours. entry gets its path.
func ownFile(entry func(file, runtime string) (string, error)) func(Engine, []byte, string) ([]byte, error) {
	return func(e Engine, text []byte, runtime string) ([]byte, error) {
		rest, err := cutBlock(text)
		if err != nil {
			return nil, err
		}
		if len(rest) > 0 {
			return nil, fmt.Errorf("%w %s: setup has not written this file", ErrForeign, Name)
		}
		ours, err := entry(e.File, runtime)
		return block(ours), err
	}
}

func podmanText(_, runtime string) (string, error) {
	return fmt.Sprintf("[engine.runtimes]\ntsugiki = [%q]\n", runtime), nil
}

// addToContainerd and addToDocker are add functions of engines whose configuration is one file.
func addToContainerd(e Engine, text []byte, program string) ([]byte, error) {
	return addContainerd(text, program, e.Translate)
}

func addToDocker(_ Engine, text []byte, program string) ([]byte, error) {
	return addDocker(text, program)
}
