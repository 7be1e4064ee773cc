package marks

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The daemons that are measured are this test binary, started again.
const roleVar = "TSUGIKI_TEST_MARKS_ROLE"

func TestMain(m *testing.M) {
	role := os.Getenv(roleVar)
	if role == "" {
		os.Exit(m.Run())
	}
	if err := roles[role](os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var roles = map[string]func([]string) error{
	"inline":  func(args []string) error { return collect(args, writeInline) },
	"handoff": func(args []string) error { return collect(args, writeByWorkers()) },
	"storm": func(args []string) error {
		go storm(args[2])
		return collect(args, writeInline)
	},
	"plain":   func(args []string) error { return collect(args, writePlain) },
	"reuse":   reuse,
	"splice":  spliceAll,
	"compute": compute,
	"threads": shortThreads,
	"overlay": overlay,
}

// burn is what handling a line costs: the same for every container.
func burn(line []byte) [32]byte {
	var sum [32]byte
	block := make([]byte, 4096)
	copy(block, line)
	for range 6 {
		sum = sha256.Sum256(block)
		copy(block, sum[:])
	}
	return sum
}

// collect is a log collector: arguments are pipe, log, pipe, log, …
func collect(args []string, handle func(*os.File, []byte) error) error {
	errs := make(chan error)
	for ; len(args) > 0; args = args[2:] {
		in, err := os.OpenFile(args[0], os.O_RDONLY|syscall.O_NONBLOCK, 0) // the runtime polls it
		if err != nil {
			return err
		}
		out, err := os.OpenFile(args[1], os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		go func() {
			lines := bufio.NewScanner(in)
			for lines.Scan() {
				if err := handle(out, lines.Bytes()); err != nil {
					errs <- err
					return
				}
			}
			errs <- lines.Err()
		}()
	}
	return <-errs
}

func writeInline(out *os.File, line []byte) error {
	_, err := fmt.Fprintf(out, "{%q:%q,\"sum\":\"%x\"}\n", "log", line, burn(line))
	return err
}

// writePlain is all that a logger does.
func writePlain(out *os.File, line []byte) error {
	_, err := fmt.Fprintf(out, "{%q:%q}\n", "log", line)
	return err
}

// writeByWorkers hands lines to goroutines that write for everybody.
func writeByWorkers() func(*os.File, []byte) error {
	type job struct {
		out  *os.File
		line []byte
	}
	jobs := make(chan job)
	for range 3 {
		go func() {
			for j := range jobs {
				if writeInline(j.out, j.line) != nil {
					return
				}
			}
		}()
	}
	return func(out *os.File, line []byte) error {
		jobs <- job{out, []byte(string(line))}
		return nil
	}
}

// storm asks an empty pipe again and again. Nobody writes to the write end.
func storm(path string) {
	fd, err := unix.Open(path+".idle", unix.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	var b [16]byte
	for {
		for range 20 {
			_, _ = unix.Read(fd, b[:])
		}
		time.Sleep(time.Millisecond)
	}
}

// reuse writes to two logs by one descriptor number, to the second three times as
// often, until its standard input ends.
func reuse(args []string) error {
	const number = 100
	for {
		for i, path := range args {
			fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o600)
			if err != nil {
				return err
			}
			if err := errors.Join(unix.Dup3(fd, number, 0), unix.Close(fd)); err != nil {
				return err
			}
			for range 100 * (1 + 2*i) {
				sum := burn([]byte(path))
				if _, err := unix.Write(number, sum[:]); err != nil {
					return err
				}
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// spliceAll moves pipes to logs without reading them. The first log is of nobody:
// what is spliced is told by the pipe, or by the log.
func spliceAll(args []string) error {
	errs := make(chan error)
	for ; len(args) > 0; args = args[2:] {
		in, err := unix.Open(args[0], unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		out, err := unix.Open(args[1], unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		go func() {
			for {
				n, err := unix.Splice(in, nil, out, nil, 1<<16, 0)
				if err != nil || n == 0 {
					errs <- err
					return
				}
				burn(nil)
			}
		}()
	}
	return <-errs
}

var mixed uint64

// compute reads a line and computes for long, without a mark, while another thread
// writes a little to a log.
func compute(args []string) error {
	log, err := os.OpenFile(args[1], os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	go func() {
		for range time.Tick(5 * time.Millisecond) {
			sum := burn(nil)
			_, _ = log.WriteAt(sum[:], 0)
		}
	}()
	in, err := os.Open(args[0])
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		for i := range uint64(200e6) { // a loop that the runtime does not preempt, see below
			mixed = mixed*6364136223846793005 + i
		}
	}
	return lines.Err()
}

// shortThreads handles each chunk in a thread that ends.
func shortThreads(args []string) error {
	in, err := unix.Open(args[0], unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	for {
		done := make(chan bool)
		go func() {
			lockThread() // a goroutine that ends locked takes its thread with it
			b := make([]byte, 4096)
			n, err := unix.Read(in, b)
			for range strings.Count(string(b[:max(n, 0)]), "\n") {
				burn(b)
			}
			done <- err == nil && n > 0
		}()
		if !<-done {
			return nil
		}
	}
}

// overlay makes a mount of its own, with a file of an overlay, says what the file
// is, and writes to it until it is killed. The test starts it in a namespace of
// mounts.
func overlay(args []string) error {
	dir := args[0]
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		return err
	}
	for _, d := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(dir+"/"+d, 0o700); err != nil {
			return err
		}
	}
	options := strings.ReplaceAll("lowerdir=D/lower,upperdir=D/upper,workdir=D/work", "D", dir)
	if err := unix.Mount("overlay", dir+"/merged", "overlay", 0, options); err != nil {
		return err
	}
	out, err := os.Create(dir + "/merged/log")
	if err != nil {
		return err
	}
	file, err := Identify(out.Name())
	if err != nil {
		return err
	}
	fmt.Println(file.Dev, file.Ino)
	for {
		sum := burn(nil)
		if _, err := out.WriteAt(sum[:], 0); err != nil {
			return err
		}
		time.Sleep(100 * time.Microsecond)
	}
}
