// Relied upon: programs attached with BPF_PROG_ATTACH stay in force for the
// sockets of their cgroup after the attaching process is gone, and after the
// cgroup itself was removed while a socket of it lives. A link
// (BPF_LINK_CREATE) that nobody holds or pins is gone with its process.
//
// Since: Linux 4.10; over the removal of the cgroup 5.3; links 5.7.
// By: bpf (policy survives the agent), keeper (a socket may outlive its
// container's cgroup in another process).

package kernel

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

func init() {
	roles["attach"] = func(c *child) { attachRefusal(c, false) }
	roles["link"] = func(c *child) { attachRefusal(c, true) }
}

// attachRefusal attaches a program that refuses every connect to the cgroup
// given as a file, and lets the process live until it is told to end.
func attachRefusal(c *child, byLink bool) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect,
		License: "GPL", Instructions: program(0),
	})
	c.check("load program", err)
	if byLink {
		l, err := link.AttachRawLink(link.RawLinkOptions{
			Target: firstFile, Program: prog, Attach: ebpf.AttachCGroupInet4Connect,
		})
		c.check("link program", err)
		defer l.Close()
	} else {
		c.check("attach program", link.RawAttachProgram(link.RawAttachProgramOptions{
			Target: firstFile, Program: prog, Attach: ebpf.AttachCGroupInet4Connect,
		}))
	}
	c.say("attached")
	c.hear()
}

func TestAttachedProgramOutlivesProcessAndCgroup(t *testing.T) {
	enterNetns(t)
	listenerAt(t, unix.SOCK_STREAM, "127.0.0.1:80")
	cg := newCgroup(t)
	attacher := start(t, "attach", nil, cg.fd)
	want(t, "child", attacher.hear(t), "attached")
	fd := cg.socket(t, unix.AF_INET, unix.SOCK_STREAM, 0)
	connect := func() error { return unix.Connect(fd, sockaddr("127.0.0.1:80")) }

	want(t, "connect while the attaching process lives", connect(), error(unix.EPERM))
	attacher.kill()
	want(t, "connect after it was killed", connect(), error(unix.EPERM))
	try(t, "remove cgroup", unix.Rmdir(cg.path))
	want(t, "connect after the cgroup was removed", connect(), error(unix.EPERM))
	unix.Close(cg.fd)
	cg.fd = -1
	want(t, "connect after the cgroup was closed", connect(), error(unix.EPERM))
}

func TestLinkedProgramEndsWithItsProcess(t *testing.T) {
	enterNetns(t)
	listenerAt(t, unix.SOCK_STREAM, "127.0.0.1:80")
	cg := newCgroup(t)
	attacher := start(t, "link", nil, cg.fd)
	want(t, "child", attacher.hear(t), "attached")
	fd := cg.socket(t, unix.AF_INET, unix.SOCK_STREAM, 0)
	want(t, "connect", unix.Connect(fd, sockaddr("127.0.0.1:80")), error(unix.EPERM))
	attacher.kill()
	testkit.Eventually(t, holds("connect after the linking process was killed", func() bool {
		return unix.Connect(fd, sockaddr("127.0.0.1:80")) == nil
	}))
}
