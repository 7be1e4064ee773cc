package holder

import (
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/fdpass"
)

// childName is the child's name for itself.
const childName = "tsugiki: holder"

// Files of the child.
const (
	listenerFile = 3 + iota
	ownerFile
	startedFile // forks.Start waits until it is closed
)

// acceptAgain is the pause after an owner that could not be accepted.
const acceptAgain = 100 * time.Millisecond

// IsChild reports whether this process is a holder. Then main calls Child.
func IsChild() bool { return len(os.Args) == 2 && os.Args[0] == childName }

// Child is the holder, and does not return.
func Child() {
	for _, file := range []int{listenerFile, ownerFile} {
		unix.CloseOnExec(file)
	}
	unix.Close(startedFile)
	debug.SetGCPercent(20)
	debug.FreeOSMemory() // of the start
	runtime.LockOSThread()
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(unsafe.StringData("tsugiki-holder\x00"))), 0, 0, 0)
	giveUp()
	c := &child{path: os.Args[1], owner: ownerFile}
	for c.turn() {
	}
	c.end()
	os.Exit(0)
}

// giveUp gives up all privileges for good. The files that it holds are open. An error leaves them: what the
// holder does, it does without them.
func giveUp() {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	_, _, _ = syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0)
	for capability, errno := uintptr(0), unix.Errno(0); errno == 0; capability++ {
		_, _, errno = syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, capability, 0) // EINVAL behind the last one
	}
	_, _, _ = syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none[0])), 0)
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

// child is what a holder has.
type child struct {
	path  string
	owner int // -1: none
	state []byte
	files []int
}

// turn waits for an event, and handles it; false if the holder is to end.
func (c *child) turn() bool {
	const listener, owner, first = 0, 1, 2
	list := []unix.PollFd{{Fd: -1, Events: unix.POLLIN}, {Fd: int32(c.owner), Events: unix.POLLIN}, {Fd: -1}}
	if c.owner < 0 {
		list[listener].Fd = listenerFile
	}
	if len(c.files) > 0 {
		list[first].Fd = int32(c.files[0])
	}
	if _, err := unix.Poll(list, -1); err != nil {
		return errors.Is(err, unix.EINTR)
	}
	switch {
	case list[first].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0:
		return false
	case list[owner].Revents != 0:
		return c.order()
	case list[listener].Revents != 0:
		c.accept()
	}
	return true
}

// order takes a message of the owner's; false if the holder is to end.
func (c *child) order() bool {
	b, control := make([]byte, stateMax+1), make([]byte, unix.CmsgSpace(4*filesMax))
	n, cn, flags, _, err := unix.Recvmsg(c.owner, b, control, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return true
	}
	if n == 0 && err == nil { // as fdpass.ReadMsg
		n, cn, flags, _, err = unix.Recvmsg(c.owner, b, control, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	}
	files := fdpass.Descriptors(control[:max(cn, 0)], nil)
	switch {
	case err != nil || n <= 0:
		closeAll(files)
		unix.Close(c.owner)
		c.owner = -1
		return len(c.files) > 0
	case b[0] == keepOrder && n <= stateMax && len(files) > 0 && flags&unix.MSG_CTRUNC == 0:
		closeAll(c.files)
		c.state, c.files = append(c.state[:0], b[:n]...), files
		return true
	}
	closeAll(files)
	return false
}

// accept takes the next owner, and tells that one what there is.
func (c *child) accept() {
	conn, _, err := unix.Accept4(listenerFile, unix.SOCK_CLOEXEC)
	if err != nil { // it has no file for it; there may be one later
		time.Sleep(acceptAgain)
		return
	}
	peer, err := unix.GetsockoptUcred(conn, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err == nil && int(peer.Uid) == os.Getuid() {
		err = unix.Sendmsg(conn, c.state, unix.UnixRights(c.files...), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	} else {
		err = unix.EPERM
	}
	if err != nil {
		unix.Close(conn)
		return
	}
	c.owner = conn
}

// end removes the socket. Who connects to it before has an end; nobody else makes another one until then.
func (c *child) end() {
	_ = os.Remove(c.path)
}
