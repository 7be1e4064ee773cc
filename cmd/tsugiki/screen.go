package main

import (
	"bytes"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// screen shows texts one after the other: on a terminal each in the place of the one
// before.
type screen struct {
	out  io.Writer
	size func() (columns, rows int) // nil: no terminal
	undo func() error
}

// What terminals of our time understand (ECMA-48, and xterm's second screen).
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	goHome      = "\x1b[H"
	clearToEnd  = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// openScreen calls quit when q is pressed.
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
	_, _ = io.WriteString(out, enterScreen) // what is shown next fails too
	return s
}

// readKeys makes a terminal give single keys, and calls quit for q.
func readKeys(in *os.File, quit func()) (restore func()) {
	fd := int(in.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return func() {}
	}
	now := *before
	now.Lflag &^= unix.ICANON | unix.ECHO
	now.Cc[unix.VMIN], now.Cc[unix.VTIME] = 1, 0
	if unix.IoctlSetTermios(fd, unix.TCSETS, &now) != nil { // as in the background
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

// fit makes a text that overwrites the one before and is no larger than the screen.
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
