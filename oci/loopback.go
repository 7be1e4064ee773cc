package oci

import (
	"net"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/thread"
)

// joinsLoopback reports whether the container joins a network namespace in which no link but a
// loopback is up. It is asked for containers of pods, whose network plugins have done their work before
// the first container is made. A namespace that cannot be looked into is none: the real runtime reports
// why.
//
// Links that are down do not count: with some of the kernel's modules, each namespace has a tunnel
// (tunl0, sit0), which leads nowhere. Only who has CAP_NET_ADMIN there sets a link up.
func (s *spec) joinsLoopback() bool {
	path, is := s.namespace(specs.NetworkNamespace)
	if !is || path == "" {
		return false
	}
	ns, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(ns)
	var links []net.Interface
	err = thread.Do(func() (err error) {
		if err = unix.Setns(ns, unix.CLONE_NEWNET); err == nil {
			links, err = net.Interfaces()
		}
		return err
	})
	return err == nil && !slices.ContainsFunc(links, func(l net.Interface) bool {
		return l.Flags&net.FlagUp != 0 && l.Flags&net.FlagLoopback == 0
	})
}
