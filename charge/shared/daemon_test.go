package shared

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The measured daemons are this test binary, started again.
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
		go storm(args[0]+".idle", args[2]+".idle")
		return collect(args, writeInline)
	},
	"wake":    wake,
	"plain":   func(args []string) error { return collect(args, writePlain) },
	"reuse":   reuse,
	"splice":  spliceAll,
	"compute": compute,
	"threads": shortThreads,
	"overlay": overlay,
}

// burn uses the CPU time of handling a line. It is the same for every container.
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

// writePlain does the work of a plain logger.
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

// wake is a program that wakes its own threads by a pipe: for each line it writes a byte to that
// pipe and reads it.
func wake(args []string) error {
	var own [2]int
	if err := unix.Pipe2(own[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	return collect(args, func(out *os.File, line []byte) error {
		var b [1]byte
		_, err1 := unix.Write(own[1], b[:])
		_, err2 := unix.Read(own[0], b[:])
		return errors.Join(err1, err2, writeInline(out, line))
	})
}

// storm reads an empty pipe again and again, for each byte of another pipe. Nobody writes to the
// empty one.
func storm(bytes, empty string) {
	from, err1 := unix.Open(bytes, unix.O_RDWR, 0)
	fd, err2 := unix.Open(empty, unix.O_RDWR|unix.O_NONBLOCK, 0)
	if err1 != nil || err2 != nil {
		return
	}
	var b [16]byte
	for {
		if _, err := unix.Read(from, b[:1]); err != nil {
			return
		}
		for range 2000 {
			_, _ = unix.Read(fd, b[:])
		}
	}
}

// reuse writes to one of two logs for each byte of its standard input, always by the same
// descriptor number. Before each write it reads a file without an owner, and works.
func reuse(args []string) error {
	const number = 100
	zero, err := unix.Open("/dev/zero", unix.O_RDONLY, 0) // without an owner
	if err != nil {
		return err
	}
	return eachByte(func(b byte) error {
		path := args[b-'0']
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_APPEND, 0)
		if err != nil {
			return err
		}
		if err := errors.Join(unix.Dup3(fd, number, 0), unix.Close(fd)); err != nil {
			return err
		}
		for range 50 {
			var b [1]byte
			_, err1 := unix.Read(zero, b[:])
			sum := burn(b[:])
			_, err2 := unix.Write(number, sum[:])
			if err := errors.Join(err1, err2); err != nil {
				return err
			}
		}
		return nil
	})
}

// eachByte calls a function for each byte of the standard input.
func eachByte(f func(byte) error) error {
	for {
		var b [1]byte
		if n, err := unix.Read(0, b[:]); err != nil || n == 0 {
			return err
		}
		if err := f(b[0]); err != nil {
			return err
		}
	}
}

// spliceAll moves data from pipes to logs without reading it. The first log has no owner, so the
// pipe or the log identifies the owner of a splice.
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

// compute reads a byte and then computes without an event, until the first byte of its third
// argument's file is set. Meanwhile another thread writes a line to a log for each byte of the
// standard input.
func compute(args []string) error {
	stop, err := mapFlag(args[2])
	if err != nil {
		return err
	}
	log, err := os.OpenFile(args[1], os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	in, err := unix.Open(args[0], unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	go func() {
		lockThread()
		_, _ = unix.Read(in, make([]byte, 1))
		for stop.Load() == 0 {
		}
	}()
	return eachByte(func(byte) error { return writeInline(log, nil) })
}

// mapFlag maps the beginning of a file that two processes share.
func mapFlag(path string) (*atomic.Uint32, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*atomic.Uint32)(unsafe.Pointer(&b[0])), nil
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

// overlay mounts an overlay with a file, prints the file's identity, and writes to the file for
// each byte of its standard input. The test starts it in a mount namespace.
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
	return eachByte(func(byte) error {
		sum := burn(nil)
		_, err := out.WriteAt(sum[:], 0)
		return err
	})
}
