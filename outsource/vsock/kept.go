package vsock

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// # Another process goes on with a device
//
// A VMM does not connect again when its device is gone. So somebody else (Keeper) has a copy of all that a device
// is made of: the connection with the VMM, files of memory and of rings, and what messages of the VMM
// have said. Where the rings are is in the guest's memory: a device uses chains in their order, so it has
// taken as many as it has given back.
//
// The next process makes a device of it (Resume). It resets the connections that the guest may take for
// open: their sockets are gone. It shows no chain twice: bytes that were not shown to the guest are lost, and
// so is their connection. A packet that was not given back is handled again; it belongs to a
// connection that is reset, or asks for a new one.
//
// A guest that ends each process that serves it would end all of them. So a device is given up when
// faultsMax processes have ended while its thread handled input of its, and none of them has lasted. A process
// that ends otherwise, and the devices whose threads wait then, are not counted. Nor is the end that a guest
// brings about on another thread, as in what serves its calls.

// Keeper keeps what a device is made of.
type Keeper interface {
	// Put keeps a state and its files in place of former ones. The caller keeps the files. It must not
	// wait. After an error, the Keeper is not called again.
	Put(state []byte, files []int) error
}

const (
	keptVersion = 1
	faultsMax   = 8
	lasting     = time.Minute
)

// ErrKept says that the state which was kept is not that of a device.
var ErrKept = errors.New("what is kept of a device is wrong")

// ErrFaults says that a guest has ended too many processes.
var ErrFaults = fmt.Errorf("%w: %d processes have ended while they handled what it sent", ErrGuest, faultsMax)

// kept is what is kept of a device, besides its files. Their order is: the VMM's connection, the list of
// connections, memory, kick and call of each ring, the VMM's for replies.
type kept struct {
	Version  int
	CID      uint64
	Features uint64
	Memory   []keptRegion
	Queues   [queueCount]keptQueue
	Replier  bool
	Resumed  bool
}

type keptRegion struct{ Guest, User, Size, Offset uint64 }

type keptQueue struct {
	Num               uint32
	Desc, Avail, Used uint64
	Taken             uint16 // of a ring that is not placed
	Placed, Enabled   bool
	Kick, Call        bool
}

// KeepBy has somebody keep what the device is made of, from now on. It is called by the function that Serve or
// Resume calls, or by any goroutine later.
func (d *Device) KeepBy(k Keeper) {
	d.post(func() {
		d.keeper = k
		d.keep()
	})
}

// keep tells the Keeper what the device is made of.
func (d *Device) keep() {
	if d.keeper == nil {
		return
	}
	state := kept{Version: keptVersion, CID: d.cid, Features: d.features, Replier: d.replier >= 0, Resumed: d.resumed}
	files := []int{d.vmmFile, d.known.file}
	for _, r := range d.memory {
		state.Memory = append(state.Memory, keptRegion{r.guest, r.user, uint64(len(r.data)), r.offset})
		files = append(files, r.file)
	}
	for i := range d.queues {
		q := &d.queues[i]
		state.Queues[i] = keptQueue{
			Num: q.num, Desc: q.descAt, Avail: q.availAt, Used: q.usedAt, Taken: q.taken, Placed: q.used != nil, Enabled: q.enabled,
			Kick: q.kick >= 0, Call: q.call >= 0,
		}
		for _, file := range []int{q.kick, q.call} {
			if file >= 0 {
				files = append(files, file)
			}
		}
	}
	if d.replier >= 0 {
		files = append(files, d.replier)
	}
	b, err := json.Marshal(&state)
	if err == nil {
		err = d.keeper.Put(b, files)
	}
	if err != nil {
		d.keeper = nil // who keeps it knows
	}
}

// Resume goes on with the device of another process, which has ended, until the VMM ends, Close or Leave is
// called, or the guest breaks the rules. It owns the files. started is as in Serve. An error before that is neither
// ErrKept nor ErrGuest, as of a process that is short of files, leaves the device as it is.
func Resume(state []byte, files []int, started func(*Device) Handler) error {
	rest := files
	take := func() int {
		file := rest[0]
		rest = rest[1:]
		return file
	}
	defer func() {
		for _, file := range rest {
			unix.Close(file)
		}
	}()
	var k kept
	if err := json.Unmarshal(state, &k); err != nil {
		return fmt.Errorf("%w: %w", ErrKept, err)
	}
	want := 2 + len(k.Memory)
	for _, q := range k.Queues {
		want += count(q.Kick) + count(q.Call)
	}
	if want += count(k.Replier); k.Version != keptVersion || len(files) != want || len(k.Memory) > regionsMax {
		return fmt.Errorf("%w: version %d with %d files", ErrKept, k.Version, len(files))
	}
	f := os.NewFile(uintptr(take()), "vmm")
	c, err := net.FileConn(f)
	f.Close()
	if errors.Is(err, unix.ENOTSOCK) {
		err = fmt.Errorf("%w: %w", ErrKept, err)
	}
	if err != nil {
		return fmt.Errorf("go on with a device: %w", err)
	}
	vmm, is := c.(*net.UnixConn)
	if !is {
		c.Close()
		return fmt.Errorf("%w: the VMM is at %v", ErrKept, c.RemoteAddr())
	}
	d := newDevice(vmm, k.CID)
	if d.known, err = openKnown(take()); err != nil {
		d.free()
		return err
	}
	for _, r := range k.Memory {
		g, err := mapRegion(rest[0], r.Guest, r.Size, r.User, r.Offset)
		if err != nil {
			d.free()
			return err
		}
		take()
		d.memory = append(d.memory, g)
	}
	for i, from := range k.Queues {
		q := &d.queues[i]
		q.num, q.descAt, q.availAt, q.usedAt = from.Num, from.Desc, from.Avail, from.Used
		q.taken, q.enabled = from.Taken, from.Enabled
		if from.Kick {
			q.kick = take()
		}
		if from.Call {
			q.call = take()
		}
	}
	if k.Replier {
		d.replier = take()
	}
	d.features, d.resumed = k.Features, k.Resumed
	d.begin = func() error { return d.goOn(&k) }
	return d.serve(started)
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// goOn is the first thing that the thread of a resumed device does. The guest's memory may be gone already.
func (d *Device) goOn(k *kept) error {
	faults := d.known.faults()
	if d.known.handling().Swap(1) != 0 && faults.Add(1) >= faultsMax {
		return ErrFaults
	}
	time.AfterFunc(lasting, func() { d.post(func() { faults.Store(0) }) })
	for c := range d.known.at {
		d.refuse(&header{fromPort: c.guest, toPort: c.host, typ: c.typ})
	}
	for i := range d.queues {
		q := &d.queues[i]
		if k.Queues[i].Placed {
			if err := q.place(d.memory); err != nil {
				return err
			}
			q.taken = q.filled
		}
		if q.kick >= 0 {
			if err := d.watch(q.kick, unix.EPOLLIN); err != nil {
				return err
			}
		}
		if q.running() {
			q.show() // the driver has to kick
			q.told--
			q.interrupt() // it may not have been told of all that it was shown
		}
	}
	one := [8]byte{1}
	_, _ = unix.Write(d.wake, one[:]) // there may be work
	return nil
}

// Leave ends the device in this process, and leaves the VMM's connection to the next one. All connections
// end; the guest is told as far as it has room for that.
func (d *Device) Leave() {
	d.post(func() { d.ending, d.leaving = true, true })
}

// resetAll ends all connections, and tells the guest so, as far as it has room for that.
func (d *Device) resetAll() error {
	d.known.faults().Store(0)
	for _, c := range d.conns {
		d.reset(c)
	}
	for more := true; more && len(d.replies) > 0; {
		var err error
		if more, err = d.receive(); err != nil {
			return err
		}
	}
	return nil
}
