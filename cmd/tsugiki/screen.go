package main

import (
	"bytes"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// screen shows one text after the other. On a terminal, each text replaces the previous one.
type screen struct {
	out  io.Writer
	size func() (columns, rows int) // nil if out is no terminal
	undo func() error
}

// Control sequences of terminals (ECMA-48, and the alternate screen of xterm).
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	goHome      = "\x1b[H"
	clearToEnd  = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// openScreen prepares a screen. It calls quit each time that q is pressed.
func openScreen(out io.Writer, in *os.File, quit func()) *screen {
	s := &screen{out: out, undo: func() error { return nil }}
	file, ok := out.(*os.File)
	if !ok {
		return s
	}
	if _, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ); err != nil {
		return s
	}
	s.size = func() (columns, rows int) {
		if w, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ); err == nil && w.Col > 0 && w.Row > 0 {
			return int(w.Col), int(w.Row)
		}
		return 80, 24
	}
	restore := readKeys(in, quit)
	s.undo = func() error {
		restore()
		_, err := io.WriteString(out, leaveScreen)
		return err
	}
	_, _ = io.WriteString(out, enterScreen) // if this fails, show fails too
	return s
}

// readKeys reads single keys from a terminal and calls quit for q. restore undoes its changes to
// the terminal.
func readKeys(in *os.File, quit func()) (restore func()) {
	fd := int(in.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return func() {}
	}
	now := *before
	now.Lflag &^= unix.ICANON | unix.ECHO
	now.Cc[unix.VMIN], now.Cc[unix.VTIME] = 1, 0
	if unix.IoctlSetTermios(fd, unix.TCSETS, &now) != nil { // such as in a background job
		return func() {}
	}
	go func() { // until the process ends
		key := make([]byte, 1)
		for {
			if n, err := in.Read(key); n == 0 || err != nil {
				return
			}
			if key[0] == 'q' {
				quit()
			}
		}
	}()
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, before) }
}

func (s *screen) show(text []byte) error {
	if s.size != nil {
		text = s.fit(text)
	}
	_, err := s.out.Write(text)
	return err
}

// fit cuts a text to the size of the screen and has it overwrite the previous one.
func (s *screen) fit(text []byte) []byte {
	columns, rows := s.size()
	fitted := []byte(goHome)
	for i, line := range bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n")) {
		if i == rows {
			break
		}
		if i > 0 {
			fitted = append(fitted, '\n')
		}
		fitted = append(append(fitted, line[:min(len(line), columns)]...), clearToEnd...)
	}
	return append(fitted, clearBelow...)
}

func (s *screen) close() error { return s.undo() }
