package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// terminal is the far end of a pseudoterminal (pty(7)) that a program has as
// its controlling terminal.
type terminal struct {
	*server
	end *os.File
}

const (
	ctrlC = "\x03"
	ctrlD = "\x04"
	ctrlZ = "\x1a"
)

// startOnTerminal starts a program in a session of its own.
func startOnTerminal(t *testing.T, c *testkit.Cmd) *terminal {
	t.Helper()
	// Not blocking, so that it can be closed while it is being read.
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("skip: needs pseudoterminals: %v", err)
	}
	end := os.NewFile(uintptr(fd), "terminal")
	t.Cleanup(func() { end.Close() })
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	c.Stdin, c.Stdout, c.Stderr = tty, tty, tty
	c.SysProcAttr.Setsid, c.SysProcAttr.Setctty = true, true
	term := &terminal{&server{Cmd: c, output: &syncBuffer{}, ended: make(chan struct{})}, end}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = c.Wait()
		close(term.ended)
	}()
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := end.Read(buf)
			_, _ = term.output.Write(buf[:n])
			if err != nil {
				return // EIO: nobody has the terminal any more
			}
		}
	}()
	t.Cleanup(func() {
		end.Close() // which hangs up: interactive shells do not heed SIGTERM
		term.stop(t)
	})
	return term
}

func (term *terminal) press(t *testing.T, keys string) {
	t.Helper()
	if _, err := term.end.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

// expect waits until the terminal has shown a text.
func (term *terminal) expect(t *testing.T, want string) {
	t.Helper()
	waitOutput(t, term.server, want)
}

// expectTimes waits until the terminal has shown a text a number of times, and
// no more than that.
func (term *terminal) expectTimes(t *testing.T, want string, times int) {
	t.Helper()
	testkit.Eventually(t, func() error {
		if n := strings.Count(term.output.String(), want); n != times {
			return fmt.Errorf("%d times %q, want %d, in %q", n, want, times, term.output)
		}
		return nil
	})
}

// wait waits for the end of the program.
func (term *terminal) wait(t *testing.T) error {
	t.Helper()
	select {
	case <-term.ended:
	case <-time.After(testkit.Patience):
		t.Fatalf("%s has not ended; the terminal shows %q", line(term.Cmd), term.output)
	}
	return term.Wait()
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	term := startOnTerminal(t, plain(t, w, "--", "sh", "-c", "tty && tty </dev/tty && stty -F /dev/tty size; read line; echo \"<$line>\""))
	term.expect(t, "0 0")
	term.press(t, "hello\n")
	term.expect(t, "<hello>")
	if err := term.wait(t); err != nil {
		t.Errorf("%v: %s", err, term.output)
	}
	if out := term.output.String(); !strings.HasPrefix(out, "/dev/pts/") || strings.Contains(out, "not a tty") {
		t.Errorf("the terminal shows %q", out)
	}
}

// TestInterruptKey checks that a program gets one signal for one key.
func TestInterruptKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	term := startOnTerminal(t, plain(t, w, "--", "sh", "-c", "trap 'echo got' INT; trap 'echo other' USR1; trap 'exit 4' QUIT; echo ready; while :; do sleep 0.01; done"))
	term.expect(t, "ready")
	for n := 1; n <= 3; n++ {
		term.press(t, ctrlC)
		testkit.Eventually(t, func() error {
			if got := strings.Count(term.output.String(), "got"); got != n {
				return fmt.Errorf("%d signals for %d keys", got, n)
			}
			return nil
		})
	}
	// tsugiki passes signals on in the order in which they came.
	if err := term.Process.Signal(unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	term.expect(t, "other")
	if got := strings.Count(term.output.String(), "got"); got != 3 {
		t.Errorf("%d signals for 3 keys", got)
	}
	term.press(t, "\x1c")
	if status := exitStatus(term.wait(t)); status != 4 {
		t.Errorf("status %d, want 4", status)
	}
	// One that does not catch it dies, and tsugiki likewise.
	term = startOnTerminal(t, plain(t, w, "--", "sh", "-c", "echo ready; exec sleep 60"))
	term.expect(t, "ready")
	term.press(t, ctrlC)
	if sig := signalOf(term.wait(t)); sig != unix.SIGINT {
		t.Errorf("ended by %v, want SIGINT", sig)
	}
}

// TestJobControl runs tsugiki as a job of a shell, and a shell with jobs under
// tsugiki.
func TestJobControl(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	shell := []string{testkit.Program(t, "bash"), "--norc", "--noprofile", "-i"}
	// The line that is typed does not hold what the job prints.
	job := []string{"sh", "-c", `echo st""arted; while read line; do echo "<$line>"; done`}
	for _, test := range []struct {
		name    string
		command *testkit.Cmd
		job     []string
	}{
		{"tsugiki-is-the-job", command(t, w.h, shell[0], shell[1:]...), plain(t, w, append([]string{"--"}, job...)...).Args},
		{"the-shell-is-inside", plain(t, w, append([]string{"--"}, shell...)...), job},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.command.Env = append(os.Environ(), "PS1=prompt ", "TERM=dumb", "HISTFILE=")
			term := startOnTerminal(t, test.command)
			term.expect(t, "prompt ")
			term.press(t, quote(test.job)+"\n")
			term.expect(t, "started")
			for n := 1; n <= 5; n++ {
				term.press(t, ctrlZ)
				term.expectTimes(t, "Stopped", n)
				// Keys may get lost while the shell sets the terminal up
				// for itself or for the job.
				term.expectTimes(t, "prompt ", n+1)
				term.press(t, `fg; echo st""atus $?`+"\n")
				term.expectTimes(t, "; done'", 1+2*n) // typed, stopped, continued
				term.press(t, "typed\n")
				term.expectTimes(t, "<typed>", n)
			}
			term.press(t, ctrlD)
			term.expect(t, "status 0")
			term.press(t, "exit 6\n")
			if status := exitStatus(term.wait(t)); status != 6 {
				t.Errorf("status %d, want 6", status)
			}
			if strings.Contains(term.output.String(), "no job control") {
				t.Errorf("the terminal shows %q", term.output)
			}
		})
	}
}

// quote writes a command line as a shell reads it.
func quote(args []string) string {
	var words []string
	for _, a := range args {
		words = append(words, "'"+strings.ReplaceAll(a, "'", `'\''`)+"'")
	}
	return strings.Join(words, " ")
}
