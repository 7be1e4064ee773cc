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

// Times of a measurement.
const (
	again = 200 * time.Millisecond // without an answer, after which the next datagram is sent
	dead  = time.Minute            // without any answer, after which nothing passes
	look  = 10 * time.Millisecond  // after which the answering end looks whether it should end
)

// End is one of the two.
type End struct {
	NS   *netns.NS
	Addr netip.Addr // IPv4
}

// socket opens a UDP socket without checksums, which a switch in user space does not compute. Its reads
// wait for a time.
func (e End) socket(wait time.Duration) (int, error) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	limit := unix.NsecToTimeval(int64(wait))
	err = errors.Join(unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1),
		unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.Bind(s, &unix.SockaddrInet4{Addr: e.Addr.As4(), Port: port}))
	if err != nil {
		unix.Close(s)
	}
	return s, err
}

// onCPU0 runs a function with a socket, on a thread of CPU 0 that ends with it. Reads wait for a time.
func (e End) onCPU0(wait time.Duration, f func(socket int) error) error {
	return e.NS.Do(func() error {
		var set unix.CPUSet
		set.Set(0)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return err
		}
		s, err := e.socket(wait)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		return f(s)
	})
}

// Measure measures round trips from one end to the other, one after the other, until it has as many
// as it should. An answer may come late: its round trip is as long as it took. If none comes for 200
// milliseconds, the next datagram is sent. Those that are not answered in the end are lost, and counted:
// a switch that has too much to do drops packets. If no answer comes for a minute, that is an error.
func Measure(from, to End, payload, count int) (times []time.Duration, lost int, err error) {
	ready, answered := make(chan struct{}), make(chan error, 1)
	var ended atomic.Bool
	go func() {
		answered <- to.onCPU0(look, func(s int) error {
			close(ready)
			return answer(s, payload, &ended)
		})
	}()
	select {
	case <-ready:
	case err := <-answered:
		return nil, 0, err
	}
	err = from.onCPU0(again, func(s int) error {
		if err := unix.Connect(s, &unix.SockaddrInet4{Addr: to.Addr.As4(), Port: port}); err != nil {
			return err
		}
		times, lost, err = ask(s, payload, count, dead)
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

// last is the number of the last datagram of this process. Late answers to an earlier measurement come to
// the same port, and are not this one's. There is one measurement at a time.
var last atomic.Uint64

// ask sends datagrams until there are as many answers as it should have, or none for a time.
func ask(s, payload, count int, limit time.Duration) (times []time.Duration, lost int, err error) {
	out, in := make([]byte, payload), make([]byte, payload)
	first := last.Load() + 1
	sent := make([]time.Time, 0, count) // when each datagram was sent; zero: its answer has come
	for heard := time.Now(); len(times) < count; {
		if time.Since(heard) > limit {
			return nil, 0, fmt.Errorf("%d of %d datagrams have no answer, and the last answer came %s ago", len(sent)-len(times), len(sent), limit)
		}
		binary.NativeEndian.PutUint64(out, last.Add(1))
		sent = append(sent, time.Now())
		if _, err := unix.Write(s, out); err != nil && !passing(err) {
			return nil, 0, fmt.Errorf("send: %w", err)
		}
		for newest := len(sent) - 1; !sent[newest].IsZero() && len(times) < count; {
			_, err := unix.Read(s, in)
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			if passing(err) {
				continue
			}
			if err != nil {
				return nil, 0, fmt.Errorf("receive answer: %w", err)
			}
			i := binary.NativeEndian.Uint64(in) - first
			if i >= uint64(len(sent)) || sent[i].IsZero() {
				continue
			}
			heard = time.Now()
			times = append(times, heard.Sub(sent[i]))
			sent[i] = time.Time{}
		}
	}
	return times, len(sent) - len(times), nil
}

// passing tells whether a socket's error says nothing of the next datagram. The answering end of an
// earlier measurement refuses what comes late.
func passing(err error) bool { return errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNREFUSED) }

// Stream sends a datagram each millisecond until ctx ends, and tells when answers came.
func Stream(ctx context.Context, from, to End, answers chan<- time.Time) error {
	ready, answered := make(chan struct{}), make(chan error, 1)
	var ended atomic.Bool
	go func() {
		answered <- to.onCPU0(look, func(s int) error {
			close(ready)
			return answer(s, streamSize, &ended)
		})
	}()
	select {
	case <-ready:
	case err := <-answered:
		return err
	}
	err := from.onCPU0(again, func(s int) error {
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
