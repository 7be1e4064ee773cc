package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// TestLogFormat compares entries with what Docker writes, byte for byte.
func TestLogFormat(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	l := startLogger(t, filepath.Join(t.TempDir(), "a", "b", "log.json"), nil)
	texts := []string{
		"hello\n", "\n", "\r\n", "tab\there <a href=\"x\">&\\\n", "\x00\x01\x1f\x7f\b\f\n", "日本語 \u2028\u2029 🙂\n", "\u00a0\n",
		strings.Repeat("0123456789abcdef", 100) + "\"\n", "sixteen bytes to\n", strings.Repeat("é", 5000) + "\n",
	}
	l.print(t, l.stdout, strings.Join(texts, ""))
	testkit.Eventually(t, func() error {
		if n := len(entriesSoFar(t, l.path)); n != len(texts) {
			return fmt.Errorf("%d entries", n)
		}
		return nil
	})
	l.print(t, l.stderr, "no newline")
	l.end(t)
	got := entries(t, l.path)
	var want strings.Builder
	for i, e := range got {
		if e.Time.Before(begin) || e.Time.After(time.Now()) || e.Time.Location() != time.UTC {
			t.Errorf("entry %d is of %v", i, e.Time)
		}
		expect := logEntry{"no newline", "stderr", e.Time}
		if i < len(texts) {
			expect = logEntry{texts[i], "stdout", e.Time}
		}
		want.WriteString(encoded(t, expect))
	}
	data, err := os.ReadFile(l.path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(want.String(), "\n"), strings.Split(string(data), "\n")); diff != "" || len(got) != len(texts)+1 {
		t.Errorf("-Docker +ours:\n%s", diff)
	}
	if st, err := os.Stat(l.path); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}

// FuzzLog compares entries with what Docker makes of any bytes.
func FuzzLog(f *testing.F) {
	f.Add([]byte("hello\n\xff\xc3(\xed\xa0\x80\xf4\x90\x80\x80\xe2\x80\xa8\n"), 1)
	f.Add([]byte("0123456é"), 5000)
	f.Add(append(bytes.Repeat([]byte("x"), 16384), "\ny"...), 2)
	f.Fuzz(func(t *testing.T, text []byte, repeat int) {
		if repeat < 1 || len(text) == 0 || len(text) > 1<<16 || repeat > 1<<17/len(text) {
			return
		}
		text = bytes.Repeat(text, repeat)
		l := startLogger(t, filepath.Join(t.TempDir(), "log.json"), nil)
		l.print(t, l.stdout, string(text))
		l.end(t)
		var got []string
		for _, e := range entries(t, l.path) {
			got = append(got, e.Log)
		}
		if diff := cmp.Diff(pieces(text), got); diff != "" {
			t.Errorf("-Docker +ours:\n%s", diff)
		}
	})
}

// TestLogRotation rotates often, while both streams print: no line may be lost, come
// twice or in another order, and the file is there at any time.
func TestLogRotation(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]string{
		"plain":      {"max-size", "100k", "max-file", "1000"},
		"compressed": {"compress", "true", "max-file", "1000", "max-size", "1m"},
	} {
		t.Run(name, func(t *testing.T) {
			const lines = 40000
			l := startLogger(t, filepath.Join(t.TempDir(), "log.json"), nil, options...)
			var writers sync.WaitGroup
			ended := make(chan struct{})
			for stream, to := range map[string]*os.File{"stdout": l.stdout, "stderr": l.stderr} {
				writers.Add(1)
				go func() {
					defer writers.Done()
					if err := numbers(to, stream, lines); err != nil {
						t.Error(err)
					}
				}()
			}
			go func() { writers.Wait(); close(ended) }()
			for looking := true; looking; {
				if !exists(l.path) {
					t.Errorf("there is no file")
				}
				select {
				case <-ended:
					looking = false
				default:
				}
			}
			l.end(t)
			files := rotated(t, l.path)
			if len(files) < 5 {
				t.Errorf("it was not rotated: %v", files)
			}
			for _, stream := range []string{"stdout", "stderr"} {
				checkNumbers(t, stream, files, lines)
			}
			for _, f := range files[:len(files)-1] {
				if strings.HasSuffix(f, ".gz") != (name == "compressed") {
					t.Errorf("%s", f)
				}
			}
		})
	}
}

// TestLogOldestGoes keeps as many files as it is told, each as large as it is told.
func TestLogOldestGoes(t *testing.T) {
	t.Parallel()
	for _, most := range []int{1, 2, 3} {
		l := startLogger(t, filepath.Join(t.TempDir(), "log.json"), nil, "max-size", "20k", "max-file", fmt.Sprint(most))
		if err := numbers(l.stdout, "stdout", 2000); err != nil {
			t.Fatal(err)
		}
		l.end(t)
		all, err := filepath.Glob(l.path + "*")
		if err != nil || len(all) != most || len(rotated(t, l.path)) != most {
			t.Errorf("max-file=%d: %v, %v", most, all, err)
		}
		last := entries(t, l.path)
		if got := last[len(last)-1].Log; got != "stdout line 1999\n" {
			t.Errorf("max-file=%d: the last line is %q", most, got)
		}
		for _, f := range all {
			// One entry more than it is told, as Docker does.
			if st, err := os.Stat(f); err != nil || st.Size() > 20200 || (f != l.path && st.Size() < 20000) {
				t.Errorf("max-file=%d: %s has %d bytes, %v", most, f, st.Size(), err)
			}
		}
	}
}

// TestLogDiskFull fills the disk: the container goes on, and when there is room again,
// the log says how many lines are missing.
func TestLogDiskFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := startLogger(t, filepath.Join(dir, "log.json"), []string{
		"unshare", "--mount", "--propagation", "private",
		"sh", "-c", `mount -t tmpfs -o size=256k tmpfs "$0" && touch "$0/ballast" && exec "$@"`, dir,
	})
	inside := fmt.Sprintf("/proc/%d/root%s", l.Process.Pid, dir)
	const lines = 10000
	if err := numbers(l.stdout, "stdout", lines); err != nil { // which does not wait for room
		t.Fatal(err)
	}
	written := func() []logEntry { return entriesSoFar(t, inside+"/log.json") }
	// What it has read when it reads again has been written, or lost.
	l.awaitRead(t, l.stdout)
	l.print(t, l.stdout, "all was read\n")
	l.awaitRead(t, l.stdout)
	before := written() // whole entries
	if err := os.Truncate(inside+"/log.json", 0); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, func() error {
		l.print(t, l.stdout, "again\n")
		if all := written(); len(all) == 0 || all[len(all)-1].Log != "again\n" {
			return errors.New("it writes nothing again")
		}
		time.Sleep(50 * time.Millisecond)
		return nil
	})
	note := written()[0]
	var lost int
	if _, err := fmt.Sscanf(note.Log, "tsugiki-log: %d lines were not written: No space left on device\n", &lost); err != nil || note.Stream != "stderr" {
		t.Errorf("the first entry is %+v", note)
	}
	// Those that were printed until there was room again are of them.
	if lost < lines-len(before) || lost > lines-len(before)+1000 {
		t.Errorf("%d lines are said to be lost, %d of %d were written", lost, len(before), lines)
	}
	l.end(t)
}

// TestLogTerminated has it take what is there when it is told to end, though somebody
// holds the streams.
func TestLogTerminated(t *testing.T) {
	t.Parallel()
	l := startLogger(t, filepath.Join(t.TempDir(), "log.json"), nil)
	if err := l.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	l.print(t, l.stdout, "one\ntwo\nthr")
	l.print(t, l.stderr, strings.Repeat("x\n", 10000))
	for _, sig := range []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGCONT} {
		if err := l.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	l.wait(t)
	var out []string
	all := entries(t, l.path)
	for _, e := range all {
		if e.Stream == "stdout" {
			out = append(out, e.Log)
		}
	}
	if !slices.Equal(out, []string{"one\n", "two\n", "thr"}) || len(all) != 10003 {
		t.Errorf("%q, %d entries", out, len(all))
	}
}

// TestLogKilled starts it with what one that was killed may leave.
func TestLogKilled(t *testing.T) {
	t.Parallel()
	entry := encoded(t, logEntry{"old\n", "stdout", time.Unix(1, 0).UTC()})
	for before, after := range map[string]string{
		"": "", entry: entry, entry + entry[:len(entry)-1]: entry, entry + `{"log":"` + strings.Repeat("x", 16384): entry, `{"lo`: "",
	} {
		path := filepath.Join(t.TempDir(), "log.json")
		if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
		// It was killed when the file had its second name.
		if err := os.Link(path, path+".1"); err != nil {
			t.Fatal(err)
		}
		l := startLogger(t, path, nil, "max-file", "3", "max-size", "1g")
		l.print(t, l.stdout, "new\n")
		l.end(t)
		all := entries(t, path)
		want := strings.Count(after, "\n") + 1
		if len(all) != want || all[want-1].Log != "new\n" || exists(path+".1") {
			t.Errorf("after %.60q: %v", before, all)
		}
	}
	// A file of somebody else's keeps its last line.
	path := filepath.Join(t.TempDir(), "log.json")
	if err := os.WriteFile(path, []byte("a\nb"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := startLogger(t, path, nil)
	l.print(t, l.stdout, "new\n")
	l.end(t)
	if data, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(data), "a\nb\n{\"log\":\"new\\n\"") {
		t.Errorf("%q, %v", data, err)
	}
}

// TestLogUsage refuses options and environments that make no sense.
func TestLogUsage(t *testing.T) {
	t.Parallel()
	program := filepath.Join(filepath.Dir(tsugiki), "tsugiki-log")
	for args, want := range map[string]string{
		"path log":                           "path=log: there are path=/FILE",
		"path /":                             "there are",
		"max-size 0":                         "there are",
		"max-size -1":                        "there are",
		"max-size 9999999999t":               "there are",
		"max-size 10x":                       "there are",
		"max-file 0":                         "there are",
		"compress yes":                       "there are",
		"compress true":                      "compress needs max-size",
		"max-file 2 compress true":           "compress needs max-size",
		"tag x":                              "there are",
		"path /" + strings.Repeat("x", 4096): "there are",
		"ID=. path /x":                       "no identifiers",
		"ID=../../etc path /x":               "no identifiers",
		"ID=" + strings.Repeat("x", 77):      "no identifiers",
		"ID=a/b":                             "no identifiers",
		"path /dev/null":                     "open /dev/null: Invalid argument",
		"path /proc/self/nothing/log":        "open /proc/self/nothing/log: No such file or directory",
		"agent relative.sock path /nonexistent/log": "there are",
	} {
		words := strings.Fields(args)
		id := "web"
		if v, found := strings.CutPrefix(words[0], "ID="); found {
			id, words = v, words[1:]
		}
		c := exec.Command(program, words...)
		c.Env = []string{"CONTAINER_ID=" + id, "CONTAINER_NAMESPACE=default"}
		var said strings.Builder
		c.Stderr = &said
		null, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		c.ExtraFiles = []*os.File{null, null}
		err = c.Run()
		null.Close()
		if c.ProcessState.ExitCode() < 1 || !strings.Contains(said.String(), want) || strings.Count(said.String(), "\n") != 1 {
			t.Errorf("%.80s: %v, %s", args, err, said.String())
		}
	}
}

// announced is an agent that is asked to charge for loggers.
type announced struct {
	mu      sync.Mutex
	status  int
	helpers []api.ChargeHelper // guarded by mu
}

func (a *announced) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var h api.ChargeHelper
	if err := json.NewDecoder(r.Body).Decode(&h); err != nil || r.Method+" "+r.URL.Path != "POST /v1/charge/helpers" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	a.helpers = append(a.helpers, h)
	w.WriteHeader(a.status)
}

func (a *announced) asked() []api.ChargeHelper {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.helpers)
}

func (a *announced) serve(t *testing.T, socket string) *http.Server {
	t.Helper()
	_ = os.Remove(socket) // of one before
	var l *net.UnixListener
	err := api.Nearby(socket, func(short string) (err error) {
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false) // it has another name by now
	server := &http.Server{Handler: a}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	return server
}

// TestLogAnnounces has it tell an agent of itself: again while the container is not
// known, and to one that comes later; logging waits for none.
func TestLogAnnounces(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	socket := filepath.Join(dir, strings.Repeat("long", 30), "agent.sock")
	if err := os.Mkdir(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	silent, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "silent.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	waits := startLogger(t, filepath.Join(dir, "waits.json"), nil, "agent", silent.Addr().String())
	waits.print(t, waits.stdout, "hello\n")
	waits.end(t)
	if n := len(entries(t, waits.path)); n != 1 {
		t.Errorf("%d entries while the agent says nothing", n)
	}

	a := &announced{status: http.StatusNotFound}
	server := a.serve(t, socket)
	l := startLogger(t, filepath.Join(dir, "log.json"), nil, "agent", socket)
	log := func(done func() bool) {
		t.Helper()
		testkit.Eventually(t, func() error {
			l.print(t, l.stdout, "hello\n")
			if !done() {
				time.Sleep(20 * time.Millisecond)
				return errors.New("the agent was not asked")
			}
			return nil
		})
	}
	log(func() bool { return len(a.asked()) >= 2 })
	a.mu.Lock()
	a.status = http.StatusCreated
	n := len(a.helpers)
	a.mu.Unlock()
	log(func() bool { return len(a.asked()) > n })
	want := api.ChargeHelper{Helper: api.HelperProcess{PID: l.Process.Pid}, To: "web", Source: "logger", By: api.ByAuto}
	for _, h := range a.asked() {
		if h != want || h.Check() != nil {
			t.Errorf("asked for %+v", h)
		}
	}
	server.Close()
	next := &announced{status: http.StatusCreated}
	next.serve(t, socket)
	log(func() bool { return len(next.asked()) > 0 })
	l.end(t)
	if len(next.asked()) != 1 || len(a.asked()) != n+1 {
		t.Errorf("asked %d and %d times, after it was heard", len(a.asked())-n, len(next.asked()))
	}
}
