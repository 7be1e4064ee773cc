package enforce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// watch reports writes by others to freezers that the agent shares with engines.
//
// It uses fanotify events that carry a descriptor of the file. The descriptor identifies the file
// without the names and handles of newer events, and cgroup files are cheap to open. The kernel
// queues an event before the write returns, with the pid of the writer.
type watch struct {
	fd    int
	wait  *os.File // owns fd; the runtime polls it
	pid   int32
	files map[file]*Account // guarded by the controller's mutex
}

// file identifies a file.
type file struct{ dev, ino uint64 }

func newWatch(c *Controller) (*watch, error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK|unix.FAN_UNLIMITED_QUEUE,
		unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("start fanotify: %w", err)
	}
	w := &watch{fd: fd, wait: os.NewFile(uintptr(fd), "fanotify"), pid: int32(os.Getpid()), files: map[file]*Account{}}
	raw, err := w.wait.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start fanotify: %w", err), w.wait.Close())
	}
	go func() {
		// Events are read only with the mutex held. So a release that has drained has seen all
		// writes before it.
		for raw.Read(readable) == nil {
			c.mu.Lock()
			if !c.closed {
				c.drain()
			}
			c.mu.Unlock()
		}
	}()
	return w, nil
}

func readable(fd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return n > 0 && err == nil
}

func (w *watch) close() error { return w.wait.Close() }

func (w *watch) add(path string, a *Account) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	if err := unix.FanotifyMark(w.fd, unix.FAN_MARK_ADD, unix.FAN_MODIFY, unix.AT_FDCWD, path); err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	w.files[file{st.Dev, st.Ino}] = a
	return nil
}

func (w *watch) remove(path string, a *Account) {
	// The kernel removes the mark together with the file.
	_ = unix.FanotifyMark(w.fd, unix.FAN_MARK_REMOVE, unix.FAN_MODIFY, unix.AT_FDCWD, path)
	for f, of := range w.files {
		if of == a {
			delete(w.files, f)
		}
	}
}

// written returns the accounts to whose freezers others have written since the last call.
func (w *watch) written() ([]*Account, error) {
	var accounts []*Account
	buf := make([]byte, 4096)
	for {
		n, err := unix.Read(w.fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) || n <= 0 && err == nil {
			return accounts, nil
		}
		if err != nil {
			return accounts, fmt.Errorf("read fanotify: %w", err)
		}
		for rest := buf[:n]; len(rest) >= unix.FAN_EVENT_METADATA_LEN; {
			size := binary.NativeEndian.Uint32(rest)
			fd := int32(binary.NativeEndian.Uint32(rest[16:]))
			pid := int32(binary.NativeEndian.Uint32(rest[20:]))
			if a := w.account(int(fd)); a != nil && pid != w.pid {
				accounts = append(accounts, a)
			}
			if size < unix.FAN_EVENT_METADATA_LEN || int(size) > len(rest) {
				break
			}
			rest = rest[size:]
		}
	}
}

// account returns the account of an event's freezer, and closes the event's descriptor.
func (w *watch) account(fd int) *Account {
	if fd < 0 {
		return nil
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil
	}
	return w.files[file{st.Dev, st.Ino}]
}

// drain passes the writes by others to their accounts.
func (c *Controller) drain() {
	accounts, err := c.watch.written()
	if err != nil {
		c.cfg.Log.Warn("watching freezers", "error", err)
	}
	for _, a := range accounts {
		if err := a.othersWrote(c.now()); err != nil {
			a.complain(err)
		}
	}
}
