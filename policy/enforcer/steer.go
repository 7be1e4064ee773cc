package enforcer

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/policy"
)

// steerSlots is STEER_SLOTS of the BPF programs.
const steerSlots = 4

// ErrNotSteered says that the kernel cannot lead connections to a listener of another address.
var ErrNotSteered = errors.New("the kernel has no sk_lookup programs, or a network namespace has as many as it can")

// Steer leads connections for second addresses, which AllowBind has noted, to the container's
// listeners in the network namespace of a place (bpf/steer.bpf.c), as long as this process lives.
// in runs a function on a thread in that namespace. If the kernel cannot lead them, the error wraps
// ErrNotSteered. It needs CAP_BPF, CAP_NET_ADMIN, and Linux 5.9.
func (e *Enforcement) Steer(netns uint64, in func(func() error) error) error {
	s := e.set
	s.steering.Lock()
	defer s.steering.Unlock()
	if s.steered[netns] != nil {
		return nil
	}
	l, err := s.steer(netns, in)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotSteered, err)
	}
	if s.steered == nil {
		s.steered = map[uint64]link.Link{}
	}
	s.steered[netns] = l
	return nil
}

func (s *set) steer(netns uint64, in func(func() error) error) (l link.Link, err error) {
	spec, err := bpf.LoadSteer()
	if err != nil {
		return nil, err
	}
	if err := spec.Variables["netns"].Set(netns); err != nil {
		return nil, err
	}
	var objs bpf.SteerObjects
	err = spec.LoadAndAssign(&objs, &ebpf.CollectionOptions{
		MapReplacements: map[string]*ebpf.Map{"steered_listeners": s.SteeredListeners},
	})
	if err != nil {
		return nil, err
	}
	defer objs.Close()
	err = in(func() error {
		ns, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		defer ns.Close()
		l, err = link.AttachNetNs(int(ns.Fd()), objs.SteerPrograms.Steer)
		return err
	})
	return l, err
}

// closeSteering detaches the programs of Steer.
func (s *set) closeSteering() error {
	s.steering.Lock()
	defer s.steering.Unlock()
	var errs []error
	for _, l := range s.steered {
		errs = append(errs, l.Close())
	}
	s.steered = nil
	return errors.Join(errs...)
}

// second notes the IPv6 address at which a socket listens too, or that it has none.
func (e *Enforcement) second(sock int, b policy.Binding) error {
	if !b.Second.IsValid() {
		err := e.set.SecondBySocket.Delete(uint32(sock))
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		return err
	}
	netns, err := unix.GetsockoptUint64(sock, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return fmt.Errorf("find a socket's network namespace: %w", err)
	}
	row := bpf.PolicySecond{Netns: netns, Addr: wordsOf(b.Second.Addr()), Port: b.Second.Port(), Rule: uint16(b.SecondRule), Container: e.id}
	return putInSocket(e.set.SecondBySocket, sock, row)
}

// Steered tells whether connections for an IPv6 address, in a network namespace, are led to a
// listener.
func (e *Enforcement) Steered(netns uint64, at netip.AddrPort) (bool, error) {
	for slot := range uint16(steerSlots) {
		var cookie uint64
		err := e.set.SteeredListeners.Lookup(steeredKey(netns, at, slot), &cookie)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, ebpf.ErrKeyNotExist) {
			return false, fmt.Errorf("find listeners at %s: %w", at, err)
		}
	}
	return false, nil
}

// EndSteering stops leading connections for an IPv6 address to a listener.
func (e *Enforcement) EndSteering(netns uint64, at netip.AddrPort) error {
	var errs []error
	for slot := range uint16(steerSlots) {
		err := e.set.SteeredListeners.Delete(steeredKey(netns, at, slot))
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("lead nobody to %s: %w", at, err))
		}
	}
	return errors.Join(errs...)
}

func steeredKey(netns uint64, at netip.AddrPort, slot uint16) bpf.PolicySteered {
	return bpf.PolicySteered{Netns: netns, Addr: wordsOf(at.Addr()), Port: at.Port(), Slot: slot}
}
