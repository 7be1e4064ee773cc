package enforcer

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/afgraft"
	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/endpoint"
)

// The state of an AF_GRAFT socket is in the kernel, in the socket's storage. It goes where the
// socket goes, ends with the socket, and outlives this process. A caller that changes it has to
// exclude other changes at the same time.

// names are the numbers by which the programs know endpoints that were bound by name. No number is
// used twice, because sockets keep their numbers.
type names struct {
	mu     sync.Mutex // guards what follows
	last   uint32
	number map[*endpoint.Endpoint]uint32
}

// lastGiven is the number of the row with the last number that was given. So a process that takes
// over also knows the numbers of withdrawn endpoints. No endpoint has this number.
const lastGiven = 0

// Name returns a Binding's number for an endpoint. The number is valid until the endpoint is
// withdrawn. It is 0 if is says that the endpoint is there no more.
func (e *Enforcement) Name(ep *endpoint.Endpoint, is func() bool) (uint32, error) {
	n := &e.named
	n.mu.Lock()
	defer n.mu.Unlock()
	if !is() {
		return 0, nil
	}
	if number, known := n.number[ep]; known {
		return number, nil
	}
	var row, last bpf.PolicyEndpointName
	copy(row.Text[:], ep.Name)
	copy(last.Text[:], strconv.FormatUint(uint64(n.last+1), 10))
	err := e.rows.names.put(e.numberKey(lastGiven), last)
	if err == nil {
		err = e.rows.names.put(e.numberKey(n.last+1), row)
	}
	if err != nil {
		return 0, fmt.Errorf("note endpoint %s: %w", ep.Name, err)
	}
	if n.number == nil {
		n.number = map[*endpoint.Endpoint]uint32{}
	}
	n.last++
	n.number[ep] = n.last
	return n.last, nil
}

// LastNamed returns the last number that Name has given; 0 if it has given none. An endpoint that was gone before has no
// later one: Name asks.
func (e *Enforcement) LastNamed() uint32 {
	n := &e.named
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last
}

// Withdraw takes an endpoint from the sockets that were bound to it by name. They no longer connect
// and send through it, except where a rule allows it.
func (e *Enforcement) Withdraw(ep *endpoint.Endpoint) error {
	n := &e.named
	n.mu.Lock()
	defer n.mu.Unlock()
	number, known := n.number[ep]
	if !known {
		return nil
	}
	if err := e.rows.names.delete(e.numberKey(number)); err != nil {
		return fmt.Errorf("withdraw endpoint %s: %w", ep.Name, err)
	}
	delete(n.number, ep)
	return nil
}

// AFGraft returns the state of an AF_GRAFT socket, or false if the file is none.
func (e *Enforcement) AFGraft(sock int) (afgraft.State, bool, error) {
	var row bpf.PolicyGraftSocket
	err := e.set.GraftBySocket.Lookup(uint32(sock), &row)
	if errors.Is(err, ebpf.ErrKeyNotExist) || errors.Is(err, unix.ENOTSOCK) || errors.Is(err, unix.EBADF) {
		return afgraft.State{}, false, nil
	}
	if err == nil && row.Container != e.id {
		return afgraft.State{}, false, nil // a socket of another container; here it is an IP socket
	}
	if err != nil {
		return afgraft.State{}, false, fmt.Errorf("look up AF_GRAFT socket: %w", err)
	}
	name, _, _ := bytes.Cut(row.Name[:], []byte{0})
	return afgraft.State{
		Name: string(name), Delayed: row.Delayed != 0, NameTransparent: row.NameTransparent != 0,
	}, true, nil
}

// SetAFGraft makes a socket an AF_GRAFT socket, or changes its state.
func (e *Enforcement) SetAFGraft(sock int, g afgraft.State) error {
	row := bpf.PolicyGraftSocket{Container: e.id, Delayed: boolByte(g.Delayed), NameTransparent: boolByte(g.NameTransparent)}
	copy(row.Name[:], g.Name)
	if err := putInSocket(e.set.GraftBySocket, sock, row); err != nil {
		return fmt.Errorf("note AF_GRAFT socket: %w", err)
	}
	return nil
}

// AFGraftOptions returns the delayed options of a socket, in the order of the calls.
func (e *Enforcement) AFGraftOptions(sock int) ([]afgraft.Option, error) {
	var row bpf.PolicyGraftQueue
	err := e.set.QueueBySocket.Lookup(uint32(sock), &row)
	if errors.Is(err, ebpf.ErrKeyNotExist) || err == nil && row.Container != e.id {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up delayed options: %w", err)
	}
	var options []afgraft.Option
	for _, o := range row.Option[:min(int(row.Count), len(row.Option))] {
		options = append(options, afgraft.Option{
			Level: int(o.Level), Name: int(o.Name), Done: o.Done != 0, Result: int(o.Result),
			Value: slices.Clone(o.Value[:min(int(o.Length), len(o.Value))]),
		})
	}
	return options, nil
}

// SetAFGraftOptions replaces the delayed options of a socket. If there is no room for all, it
// returns ErrQueueFull and changes nothing.
func (e *Enforcement) SetAFGraftOptions(sock int, options []afgraft.Option) error {
	var row bpf.PolicyGraftQueue
	if len(options) > len(row.Option) {
		return afgraft.ErrQueueFull
	}
	row.Container, row.Count = e.id, uint32(len(options))
	for i, o := range options {
		if len(o.Value) > len(row.Option[i].Value) {
			return afgraft.ErrQueueFull
		}
		row.Option[i] = bpf.PolicyGraftOption{
			Level: int32(o.Level), Name: int32(o.Name), Done: boolByte(o.Done), Result: int32(o.Result),
			Length: uint8(len(o.Value)),
		}
		copy(row.Option[i].Value[:], o.Value)
	}
	if err := putInSocket(e.set.QueueBySocket, sock, row); err != nil {
		return fmt.Errorf("note delayed options: %w", err)
	}
	return nil
}
