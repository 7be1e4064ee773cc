package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bench/roundtrip"
	"github.com/tsugiki/tsugiki/internal/sys/thread"
)

// The load.
const (
	slice    = 10 * time.Millisecond
	busy     = 8 * time.Millisecond
	loadPort = 9    // discard
	burst    = 32   // datagrams each millisecond, and on the way at most
	loadSize = 1400 // bytes
)

// window bounds the datagrams of the load that are on the way, so that they do not fill the receive queue
// of a switch that gets little CPU time: there would be no room for a datagram that is measured. Those on
// the way are taken to be lost if none of them comes for a time, which doubles until one comes.
type window struct {
	sent, done uint64 // numbers: of the last one, and of the last one that has come or is taken to be lost
	wait       time.Duration
	since      time.Time // of the last change of done
}

const lossAfter = 100 * time.Millisecond

// room returns how many datagrams may be sent. arrived is the number of the last one that has come.
func (w *window) room(now time.Time, arrived uint64) int {
	arrived = min(arrived, w.sent)
	switch {
	case arrived > w.done || w.sent == w.done:
		w.done, w.since, w.wait = max(w.done, arrived), now, lossAfter
	case now.Sub(w.since) >= w.wait:
		w.done, w.since = w.sent, now
		w.wait *= 2
	}
	return burst - int(w.sent-w.done)
}

// lastLoad is the number of the last datagram of all loads before. Some of those may come late, to the next
// load's sink.
var lastLoad uint64

// load is what a load's threads share.
type load struct {
	ended   atomic.Bool
	arrived atomic.Uint64 // number of the last datagram that has come
}

// startLoad has a thread of CPU 0 busy, and sends datagrams on a way.
func startLoad(w *way) (stop func() error) {
	var l load
	var work sync.WaitGroup
	errs := make([]error, 3)
	work.Go(func() { errs[0] = thread.Do(l.compute) })
	work.Go(func() { errs[1] = w.to.NS.Do(func() error { return l.sink(w.to) }) })
	work.Go(func() { errs[2] = w.from.NS.Do(func() error { return l.send(w.to) }) })
	return func() error {
		l.ended.Store(true)
		work.Wait()
		return errors.Join(errs...)
	}
}

func onCPU0() error {
	var set unix.CPUSet
	set.Set(0)
	return unix.SchedSetaffinity(0, &set)
}

// compute is busy for a share of each slice.
func (l *load) compute() error {
	err := onCPU0()
	for err == nil && !l.ended.Load() {
		for began := time.Now(); time.Since(began) < busy; {
		}
		time.Sleep(slice - busy)
	}
	return err
}

// socket opens a UDP socket on CPU 0, whose reads wait for 10 milliseconds.
func (l *load) socket() (int, error) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	limit := unix.NsecToTimeval(int64(10 * time.Millisecond))
	err = errors.Join(onCPU0(), unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1), unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	if err != nil {
		unix.Close(s)
	}
	return s, err
}

// sink notes the numbers of datagrams that come.
func (l *load) sink(at roundtrip.End) error {
	s, err := l.socket()
	if err != nil {
		return err
	}
	defer unix.Close(s)
	if err := unix.Bind(s, &unix.SockaddrInet4{Addr: at.Addr.As4(), Port: loadPort}); err != nil {
		return fmt.Errorf("take the load's datagrams: %w", err)
	}
	for b := make([]byte, 8); !l.ended.Load(); {
		if n, _, err := unix.Recvfrom(s, b, 0); err == nil && n == len(b) {
			l.arrived.Store(binary.NativeEndian.Uint64(b))
		}
	}
	return nil
}

// send sends as many datagrams as the way takes, up to a burst each millisecond.
func (l *load) send(to roundtrip.End) error {
	s, err := l.socket()
	if err != nil {
		return err
	}
	defer unix.Close(s)
	if err := unix.Connect(s, &unix.SockaddrInet4{Addr: to.Addr.As4(), Port: loadPort}); err != nil {
		return fmt.Errorf("send the load's datagrams: %w", err)
	}
	w := window{sent: lastLoad, done: lastLoad}
	defer func() { lastLoad = w.sent }()
	for data := make([]byte, loadSize); !l.ended.Load(); time.Sleep(time.Millisecond) {
		for range w.room(time.Now(), l.arrived.Load()) {
			w.sent++
			binary.NativeEndian.PutUint64(data, w.sent)
			_, _ = unix.Write(s, data) // refused: the sink has begun later, or has ended
		}
	}
	return nil
}
