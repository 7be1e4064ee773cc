package e2e

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// logger is a running tsugiki-log, which was started as containerd's shim does.
type logger struct {
	*exec.Cmd
	path           string
	stdout, stderr *os.File // writing ends
	said           bytes.Buffer
}

// startLogger starts a logger by a program that starts it, if there is one, and waits
// until it is ready.
func startLogger(t testing.TB, path string, by []string, options ...string) *logger {
	t.Helper()
	args := append(append(by, filepath.Join(filepath.Dir(tsugiki), "tsugiki-log")), append([]string{"path", path, "agent", "none"}, options...)...)
	l := &logger{Cmd: exec.Command(args[0], args[1:]...), path: path}
	l.Env = []string{"CONTAINER_ID=web", "CONTAINER_NAMESPACE=default"}
	l.Stderr = &l.said
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		return r, w
	}
	var out, errs, ready, awaited *os.File
	out, l.stdout = pipe()
	errs, l.stderr = pipe()
	ready, awaited = pipe()
	l.ExtraFiles = []*os.File{out, errs, awaited}
	if err := l.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.stdout.Close(); l.stderr.Close(); _ = l.Process.Kill() })
	for _, f := range l.ExtraFiles {
		f.Close()
	}
	defer ready.Close()
	if _, err := ready.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("the logger is not ready: %v", err)
	}
	return l
}

// print writes to one of its streams.
func (l *logger) print(t testing.TB, to *os.File, text string) {
	t.Helper()
	if _, err := io.WriteString(to, text); err != nil {
		t.Fatalf("%v; the logger says %s", err, l.said.String())
	}
}

// awaitRead waits until the logger has read all that was written to one of its streams.
func (l *logger) awaitRead(t testing.TB, from *os.File) {
	t.Helper()
	testkit.Eventually(t, func() error {
		n, err := unix.IoctlGetInt(int(from.Fd()), unix.TIOCINQ) // FIONREAD
		if err == nil && n > 0 {
			err = fmt.Errorf("%d bytes are in the pipe", n)
		}
		return err
	})
}

// end ends both streams and waits for it.
func (l *logger) end(t testing.TB) {
	t.Helper()
	l.stdout.Close()
	l.stderr.Close()
	l.wait(t)
}

func (l *logger) wait(t testing.TB) {
	t.Helper()
	if err := l.Wait(); err != nil {
		t.Fatalf("%v: %s", err, l.said.String())
	}
}

// logEntry is one of a log, as Docker has it.
type logEntry struct {
	Log    string    `json:"log"`
	Stream string    `json:"stream"`
	Time   time.Time `json:"time"`
}

// entries are those of one file; all of it has to be entries.
func entries(t testing.TB, path string) []logEntry {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil && strings.HasSuffix(path, ".gz") {
		var z *gzip.Reader
		if z, err = gzip.NewReader(bytes.NewReader(data)); err == nil {
			data, err = io.ReadAll(z)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return parseEntries(t, path, data)
}

// entriesSoFar are those of a file that is being written: the last one may be there in part.
func entriesSoFar(t testing.TB, path string) []logEntry {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return parseEntries(t, path, data[:bytes.LastIndexByte(data, '\n')+1])
}

func parseEntries(t testing.TB, path string, data []byte) []logEntry {
	t.Helper()
	var all []logEntry
	for line := range bytes.Lines(data) {
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		var e logEntry
		if err := d.Decode(&e); err != nil || line[len(line)-1] != '\n' {
			t.Fatalf("%s: entry %q: %v", path, line, err)
		}
		all = append(all, e)
	}
	return all
}

// rotated are the files of a log, the oldest first.
func rotated(t testing.TB, path string) []string {
	t.Helper()
	var files []string
	for n := 0; ; n++ {
		name := path
		if n > 0 {
			name += "." + strconv.Itoa(n)
		}
		plain, zipped := exists(name), exists(name+".gz")
		switch {
		case plain && zipped:
			t.Errorf("%s is there twice", name)
		case zipped:
			name += ".gz"
		case !plain:
			return files
		}
		files = append([]string{name}, files...)
	}
}

// checkNumbers checks that the lines of a stream, in all files, are the numbers from 0 to n.
func checkNumbers(t testing.TB, stream string, files []string, n int) {
	t.Helper()
	next := 0
	for _, f := range files {
		for _, e := range entries(t, f) {
			if e.Stream != stream {
				continue
			}
			if want := fmt.Sprintf("%s line %d\n", stream, next); e.Log != want {
				t.Fatalf("%s: %q, not %q", f, e.Log, want)
			}
			next++
		}
	}
	if next != n {
		t.Errorf("%d lines of %s, not %d", next, stream, n)
	}
}

// numbers prints such lines.
func numbers(to io.Writer, stream string, n int) error {
	w := bufio.NewWriterSize(to, 1<<10)
	for i := range n {
		fmt.Fprintf(w, "%s line %d\n", stream, i)
	}
	return w.Flush()
}

// pieces are the texts of the entries that Docker makes of what a program prints, but
// that no character is cut in two.
func pieces(text []byte) []string {
	const longest = 16384
	var all []string
	for len(text) > 0 {
		head := text[:min(len(text), longest)]
		n := bytes.IndexByte(head, '\n') + 1
		if n == 0 {
			n = len(head)
			for i := 1; n == longest && i < utf8.UTFMax; i++ {
				if c := head[n-i]; utf8.RuneStart(c) {
					if size := runeSize(c); size > i {
						n -= i
					}
					break
				}
			}
		}
		all = append(all, string([]rune(string(text[:n])))) // no UTF-8 is U+FFFD
		text = text[n:]
	}
	return all
}

// runeSize is how many bytes a character takes that begins with this one.
func runeSize(first byte) int {
	for size, b := range map[int][2]byte{2: {0xc2, 0xdf}, 3: {0xe0, 0xef}, 4: {0xf0, 0xf4}} {
		if first >= b[0] && first <= b[1] {
			return size
		}
	}
	return 1
}

// encoded is an entry as Docker writes it: encoding/json of before Go had short escapes
// for \b, \f and \t.
func encoded(t testing.TB, e logEntry) string {
	t.Helper()
	data, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	pairs := []string{`\\`, `\\`, `\b`, `\u0008`, `\f`, `\u000c`, `\t`, `\u0009`, "\ufffd", "\ufffd"}
	return strings.NewReplacer(pairs...).Replace(string(data)) + "\n"
}
