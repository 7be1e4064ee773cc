// Relied upon: cgroup socket programs belong to the cgroup in which a socket
// was made, whoever uses it: they run for a caller outside of that cgroup, the
// caller's own do not. This holds for the connect after connect(AF_UNSPEC),
// which itself runs nothing, and for sockets accepted from a listener: they are
// in the listener's cgroup.
//
// Since: Linux 4.17 (connect programs).
// By: bpf and keeper (sockets are made in the keeper's cgroup and used by the
// container): this is what makes the programs a security boundary.

package kernel

import (
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

func TestProgramsFollowTheSocketNotTheCaller(t *testing.T) {
	enterNetns(t)
	listenerAt(t, unix.SOCK_STREAM, "127.0.0.1:80")
	maker, caller := newCgroup(t), newCgroup(t)
	ofMaker := watch(t, maker, ebpf.AttachCGroupInet4Connect)
	ofCaller := watch(t, caller, ebpf.AttachCGroupInet4Connect)
	fd := maker.socket(t, unix.AF_INET, unix.SOCK_STREAM, 0)

	check := func(what string, runs int) {
		t.Helper()
		want(t, what+": runs of the maker's program", ofMaker.runs(t), runs)
		want(t, what+": runs of the caller's program", ofCaller.runs(t), 0)
	}
	caller.run(t, func() {
		try(t, "connect", unix.Connect(fd, sockaddr("127.0.0.1:80")))
		check("connect", 1)
		disconnect(t, fd)
		check("connect(AF_UNSPEC)", 0)
		try(t, "connect", unix.Connect(fd, sockaddr("127.0.0.1:80")))
		check("connect after connect(AF_UNSPEC)", 1)

		own := socket(t, unix.AF_INET, unix.SOCK_STREAM, 0)
		try(t, "connect", unix.Connect(own, sockaddr("127.0.0.1:80")))
		want(t, "runs of the caller's program for its own socket", ofCaller.runs(t), 1)
	})
}

func TestAcceptedSocketsAreInTheListenersCgroup(t *testing.T) {
	enterNetns(t)
	maker, caller := newCgroup(t), newCgroup(t)
	ofMaker := watch(t, maker, ebpf.AttachCGroupInet4Connect)
	ofCaller := watch(t, caller, ebpf.AttachCGroupInet4Connect)
	var listener int
	maker.run(t, func() { listener = listenerAt(t, unix.SOCK_STREAM, "127.0.0.1:80") })

	caller.run(t, func() {
		client := socket(t, unix.AF_INET, unix.SOCK_STREAM, 0)
		try(t, "connect", unix.Connect(client, sockaddr("127.0.0.1:80")))
		conn, _ := accept(t, listener)
		ofMaker.runs(t)
		ofCaller.runs(t)

		// An accepted socket can be made to connect elsewhere.
		disconnect(t, conn)
		try(t, "connect", unix.Connect(conn, sockaddr("127.0.0.1:80")))
		want(t, "runs of the listener's program", ofMaker.runs(t), 1)
		want(t, "runs of the accepting process's program", ofCaller.runs(t), 0)
	})
}
