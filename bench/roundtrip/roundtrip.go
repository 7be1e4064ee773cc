// Package roundtrip measures round trips of datagrams between two network namespaces.
//
// It owns two sockets and two threads, both on CPU 0. It needs root.
package roundtrip

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
)

// port is where both ends are.
const port = 7

// patience is how long an answer may take before it is lost.
const patience = 200 * time.Millisecond

// lostMax is how many may be lost in any case: a path's first ones, say, until neighbors are known.
const lostMax = 50

// End is one of the two.
type End struct {
	NS   *netns.NS
	Addr netip.Addr // IPv4
}

// socket opens a UDP socket without checksums, which a switch in user space does not compute.
func (e End) socket() (int, error) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	limit := unix.NsecToTimeval(int64(patience))
	err = errors.Join(unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1),
		unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.Bind(s, &unix.SockaddrInet4{Addr: e.Addr.As4(), Port: port}))
	if err != nil {
		unix.Close(s)
	}
	return s, err
}

// onCPU0 runs a function with a socket, on a thread of CPU 0 that ends with it.
func (e End) onCPU0(f func(socket int) error) error {
	return e.NS.Do(func() error {
		var set unix.CPUSet
		set.Set(0)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return err
		}
		s, err := e.socket()
		if err != nil {
			return err
		}
		defer unix.Close(s)
		return f(s)
	})
}

// Measure measures round trips from one end to the other, one after the other, until it has as many
// as it should. Datagrams without an answer are lost, and counted: a switch that has too much to do
// drops packets.
func Measure(from, to End, payload, count int) (times []time.Duration, lost int, err error) {
	ready, answered := make(chan struct{}), make(chan error, 1)
	var ended atomic.Bool
	go func() {
		answered <- to.onCPU0(func(s int) error {
			close(ready)
			return answer(s, payload, &ended)
		})
	}()
	select {
	case <-ready:
	case err := <-answered:
		return nil, 0, err
	}
	err = from.onCPU0(func(s int) error {
		if err := unix.Connect(s, &unix.SockaddrInet4{Addr: to.Addr.As4(), Port: port}); err != nil {
			return err
		}
		times, lost, err = ask(s, payload, count)
		return err
	})
	ended.Store(true)
	return times, lost, errors.Join(err, <-answered)
}

// answer sends datagrams back.
func answer(s, payload int, ended *atomic.Bool) error {
	buf := make([]byte, payload)
	for !ended.Load() {
		n, from, err := unix.Recvfrom(s, buf, 0)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err == nil {
			err = unix.Sendto(s, buf[:n], 0, from)
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("answer: %w", err)
		}
	}
	return nil
}

// ask numbers its datagrams: an answer that comes late is not the next one's.
func ask(s, payload, count int) (times []time.Duration, lost int, err error) {
	out, in := make([]byte, payload), make([]byte, payload)
	for number := uint64(1); len(times) < count; number++ {
		binary.NativeEndian.PutUint64(out, number)
		began := time.Now()
		if _, err := unix.Write(s, out); err != nil {
			return nil, lost, fmt.Errorf("send: %w", err)
		}
		for {
			_, err := unix.Read(s, in)
			if errors.Is(err, unix.EAGAIN) {
				if lost++; lost > lostMax && lost > len(times) {
					return nil, lost, fmt.Errorf("%d of %d datagrams have no answer", lost, number)
				}
				break
			}
			if errors.Is(err, unix.EINTR) || err == nil && binary.NativeEndian.Uint64(in) != number {
				continue
			}
			if err != nil {
				return nil, lost, fmt.Errorf("receive answer: %w", err)
			}
			times = append(times, time.Since(began))
			break
		}
	}
	return times, lost, nil
}

// Stream sends a datagram each millisecond until ctx ends, and tells when answers came.
func Stream(ctx context.Context, from, to End, answers chan<- time.Time) error {
	ready, answered := make(chan struct{}), make(chan error, 1)
	var ended atomic.Bool
	go func() {
		answered <- to.onCPU0(func(s int) error {
			close(ready)
			return answer(s, streamSize, &ended)
		})
	}()
	select {
	case <-ready:
	case err := <-answered:
		return err
	}
	err := from.onCPU0(func(s int) error {
		if err := unix.Connect(s, &unix.SockaddrInet4{Addr: to.Addr.As4(), Port: port}); err != nil {
			return err
		}
		buf := make([]byte, streamSize)
		for ctx.Err() == nil {
			if _, err := unix.Write(s, buf); err != nil {
				return fmt.Errorf("send: %w", err)
			}
			time.Sleep(time.Millisecond)
			for {
				if _, _, err := unix.Recvfrom(s, buf, unix.MSG_DONTWAIT); err != nil {
					break
				}
				select {
				case answers <- time.Now():
				default: // nobody reads any more
				}
			}
		}
		return nil
	})
	ended.Store(true)
	return errors.Join(err, <-answered)
}

const streamSize = 128 // bytes
