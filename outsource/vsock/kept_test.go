package vsock

import (
	"encoding/json"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// memoryKeeper is a Keeper in this process.
type memoryKeeper struct {
	t     testing.TB
	mu    sync.Mutex // guards what follows
	state []byte
	files []int
}

func keepIn(d *driver) *memoryKeeper {
	k := &memoryKeeper{t: d.t}
	d.t.Cleanup(func() {
		_, files := k.take()
		closeFiles(files)
	})
	d.device.KeepBy(k)
	return k
}

func closeFiles(files []int) {
	for _, file := range files {
		unix.Close(file)
	}
}

func (k *memoryKeeper) Put(state []byte, files []int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	closeFiles(k.files)
	k.state, k.files = append([]byte(nil), state...), nil
	for _, file := range files {
		file, err := unix.FcntlInt(uintptr(file), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return err
		}
		k.files = append(k.files, file)
	}
	return nil
}

func (k *memoryKeeper) take() ([]byte, []int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	files := k.files
	k.files = nil
	return k.state, files
}

// stop ends the device as the end of its process does while the thread handles input: nobody is told.
func (d *driver) stop() {
	d.t.Helper()
	d.device.post(func() { d.device.ending = true })
	if err := d.wantEnd(); err != nil {
		d.t.Fatal(err)
	}
}

// resume has another process go on with the device.
func (d *driver) resume(k *memoryKeeper) {
	d.t.Helper()
	state, files := k.take()
	made := make(chan *Device, 1)
	ended := make(chan error, 1)
	go func() {
		err := Resume(state, files, func(dev *Device) Handler {
			dev.Observe(&d.counts, &d.work)
			dev.KeepBy(k)
			made <- dev
			return d
		})
		ended <- err
		d.ended <- err
	}()
	select {
	case d.device = <-made:
	case err := <-ended:
		d.t.Fatalf("resume: %v", err)
	}
}

// sentinel shows that nothing for the guest came before.
func (d *driver) sentinel() {
	d.t.Helper()
	d.give(header{fromPort: 99, toPort: 98, op: opData}, nil)
	if p := d.expect(opReset); p.toPort != 99 {
		d.t.Errorf("before the sentinel came %+v", p.header)
	}
	for !d.used(txQueue) {
		d.wait(txQueue)
	}
	d.seen[txQueue]++
}

// TestResume has a device's process end without a word, several times, while the VMM and the guest go on: the
// connections of the guest are reset, what it sends meanwhile is handled, and new connections work.
func TestResume(t *testing.T) {
	d := newDriver(t)
	k := keepIn(d)
	d.start()
	for round := range uint32(3) {
		port := 1000 + 10*round
		peer := d.connect(port, Stream)
		d.connect(port+1, Stream)
		d.send(header{fromPort: port + 2, toPort: 80, op: opRequest, alloc: testAlloc}, nil) // nobody answers it
		<-d.asked
		d.connect(port+3, Stream)
		d.send(header{fromPort: port + 3, toPort: 80, op: opReset}, nil) // this one has ended
		d.send(header{fromPort: port + 4, toPort: 80, op: opRequest, alloc: testAlloc}, nil)
		(<-d.asked).Refuse() // and this one is told
		d.expect(opReset)
		d.stop()
		if _, err := io.ReadAll(peer); err != nil && !errors.Is(err, unix.ECONNRESET) {
			t.Error(err)
		}
		d.give(header{fromPort: port + 5, toPort: 80, op: opRequest, alloc: testAlloc}, nil) // while nobody is there

		d.resume(k)
		resets := map[uint32]bool{}
		for range 3 {
			p := d.expect(opReset)
			resets[p.toPort] = p.fromPort == 80 && p.typ == Stream
		}
		if !resets[port] || !resets[port+1] || !resets[port+2] {
			t.Errorf("resets of %v", resets)
		}
		r := <-d.asked
		for !d.used(txQueue) {
			d.wait(txQueue)
		}
		d.seen[txQueue]++
		if r.From != port+5 {
			t.Errorf("request %+v", r)
		}
		r.Refuse()
		if p := d.expect(opReset); p.toPort != port+5 {
			t.Errorf("%+v", p.header)
		}
		d.sentinel()
		peer = d.connect(port, Stream)
		d.send(header{fromPort: port, toPort: 80, op: opData, alloc: testAlloc}, []byte("anew"))
		b := make([]byte, 4)
		if _, err := io.ReadFull(peer, b); err != nil || string(b) != "anew" {
			t.Errorf("%q, %v", b, err)
		}
		if _, err := peer.Write([]byte("back")); err != nil {
			t.Fatal(err)
		}
		if p := d.expect(opData); string(p.data) != "back" {
			t.Errorf("%+v %q", p.header, p.data)
		}
		d.send(header{fromPort: port, toPort: 80, op: opReset}, nil)
		d.ask(getFeatures, nil) // the VMM has noticed nothing
	}
	if err := d.end(); err != nil {
		t.Error(err)
	}
}

// TestLeave has a device's process end in an orderly way: the guest is told at once.
func TestLeave(t *testing.T) {
	d := newDriver(t)
	k := keepIn(d)
	d.start()
	d.connect(1000, Stream)
	d.device.Leave()
	if err := d.wantEnd(); err != nil {
		t.Fatal(err)
	}
	if p := d.expect(opReset); p.toPort != 1000 || p.fromPort != 80 {
		t.Errorf("%+v", p.header)
	}
	d.resume(k)
	d.sentinel()
	d.connect(1000, Stream)
}

// TestResumeWithoutRoom has a guest that takes nothing when its device goes on. It is told of all its connections
// once it does.
func TestResumeWithoutRoom(t *testing.T) {
	const streams = 3 * testRing
	d := newDriver(t)
	k := keepIn(d)
	d.setUp()
	for i := range uint32(streams) {
		defer unix.Close(d.open(i))
	}
	d.stop()
	d.resume(k)
	d.device.Leave() // again, before the guest was told
	if err := d.wantEnd(); err != nil {
		t.Fatal(err)
	}
	d.resume(k)
	d.offer()
	resets := map[uint32]bool{}
	for len(resets) < streams {
		p := d.next()
		if p.op != opReset && p.op != opResponse || p.toPort >= streams || resets[p.toPort] {
			t.Fatalf("%+v, after %d resets", p.header, len(resets))
		}
		if p.op == opReset {
			resets[p.toPort] = true
		}
	}
	d.sentinel()
}

// TestResumeBeforeEvent has a process end before it has told a guest that its device is another one. The next one tells
// it, once.
func TestResumeBeforeEvent(t *testing.T) {
	d := newDriver(t)
	d.start()
	d.sentinel()
	if err := d.end(); err != nil {
		t.Error(err)
	}
	closeFiles(append(d.kicks[:], d.calls[:]...))
	d.serve()
	k := keepIn(d)
	d.setUp()
	d.sentinel()
	d.stop()
	d.resume(k)
	d.offerEvent()
	for !d.used(eventQueue) {
		d.wait(eventQueue)
	}
	d.seen[eventQueue]++
	d.sentinel()
	d.stop()
	d.resume(k)
	d.offerEvent()
	d.sentinel()
	if d.used(eventQueue) {
		t.Error("the guest is told twice")
	}
}

// handling opens the word that says whether a process handles the device's input.
func (k *memoryKeeper) handling() *atomic.Uint32 {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	file, err := unix.FcntlInt(uintptr(k.files[1]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		k.t.Fatal(err)
	}
	l, err := openKnown(file)
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(l.close)
	return l.handling()
}

// TestOthersFaults has a device whose processes end for reasons of others, while its thread waits. It goes on
// each time.
func TestOthersFaults(t *testing.T) {
	d := newDriver(t)
	k := keepIn(d)
	d.start()
	for range 2 * faultsMax {
		d.sentinel()
		handling := k.handling()
		testkit.Eventually(t, func() error {
			if handling.Load() != 0 {
				return errors.New("the thread does not wait")
			}
			return nil
		})
		d.stop()
		if handling.Load() != 1 {
			t.Error("a thread that ended while it handled a call does not say so")
		}
		handling.Store(0) // as it was while the thread waited
		d.resume(k)
	}
	d.sentinel()
}

// TestFaults has a guest whose device's processes end soon, while they handle what it sends. In the end no process
// goes on with it.
func TestFaults(t *testing.T) {
	d := newDriver(t)
	k := keepIn(d)
	d.start()
	d.sentinel()
	d.stop()
	for range faultsMax - 1 {
		d.resume(k)
		d.sentinel()
		d.stop()
	}
	state, files := k.take()
	go func() { d.ended <- Resume(state, files, func(*Device) Handler { return d }) }()
	if err := d.wantEnd(); !errors.Is(err, ErrFaults) || !errors.Is(err, ErrGuest) {
		t.Errorf("one more: %v", err)
	}
}

// TestResumeWrong has states of which there is no device. The files are closed.
func TestResumeWrong(t *testing.T) {
	d := newDriver(t)
	k := keepIn(d)
	d.start()
	d.sentinel()
	d.stop()
	state, files := k.take()
	defer closeFiles(files)
	var good kept
	if err := json.Unmarshal(state, &good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*kept, *[]int){
		"another version":   func(k *kept, _ *[]int) { k.Version++ },
		"a file less":       func(_ *kept, f *[]int) { *f = (*f)[1:] },
		"no files":          func(_ *kept, f *[]int) { *f = nil },
		"no connection":     func(_ *kept, f *[]int) { (*f)[0] = (*f)[1] },
		"no list":           func(_ *kept, f *[]int) { (*f)[1] = (*f)[2] },
		"no memory":         func(k *kept, f *[]int) { k.Memory, *f = nil, append((*f)[:2:2], (*f)[3:]...) },
		"memory of no file": func(k *kept, _ *[]int) { k.Memory[0].Size = 1 << 40 },
		"a large ring":      func(k *kept, _ *[]int) { k.Queues[0].Num = 1 << 20 },
		"a ring out of all": func(k *kept, _ *[]int) { k.Queues[1].Used = 1 << 62 },
		"many parts":        func(k *kept, _ *[]int) { k.Memory = make([]keptRegion, 1<<10) },
		"kicks by no file":  func(_ *kept, f *[]int) { (*f)[3] = (*f)[2] },
	} {
		before, err := testkit.OpenFiles(unix.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		var changed kept
		if err := json.Unmarshal(state, &changed); err != nil {
			t.Fatal(err)
		}
		var copies []int
		for _, file := range files {
			file, err := unix.FcntlInt(uintptr(file), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			copies = append(copies, file)
		}
		given := append([]int(nil), copies...)
		change(&changed, &given)
		for i, file := range given { // each file is owned once
			if i < len(given) {
				given[i], err = unix.FcntlInt(uintptr(file), unix.F_DUPFD_CLOEXEC, 0)
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		closeFiles(copies)
		b, err := json.Marshal(&changed)
		if err != nil {
			t.Fatal(err)
		}
		if err := Resume(b, given, func(*Device) Handler { return d }); err == nil {
			t.Errorf("%s: it goes on", name)
		}
		// A device of an earlier test may close its files meanwhile.
		if after, err := testkit.OpenFiles(unix.Getpid()); err != nil || len(after) > len(before) {
			t.Errorf("%s: %d files, and %d before: %v", name, len(after), len(before), err)
		}
	}
	if err := Resume([]byte("x"), nil, nil); !errors.Is(err, ErrKept) {
		t.Errorf("no state: %v", err)
	}
}

// TestKnownIsFull has more connections than the list has room for.
func TestKnownIsFull(t *testing.T) {
	l, err := newKnown()
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	for i := range uint32(slotsMax + 10) {
		l.add(key{i, 1, Stream})
	}
	l.remove(key{slotsMax + 5, 1, Stream}) // it is not there
	l.remove(key{7, 1, Stream})
	l.add(key{5, 2, SeqPacket})
	file, err := unix.FcntlInt(uintptr(l.file), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	again, err := openKnown(file)
	if err != nil {
		t.Fatal(err)
	}
	defer again.close()
	if len(again.at) != slotsMax-1 || again.at[key{5, 2, SeqPacket}] == 0 || again.at[key{7, 1, Stream}] != 0 || len(again.free) != 0 {
		t.Errorf("%d connections, %d free", len(again.at), len(again.free))
	}
	again.clear()
	if len(again.at) != 0 || len(again.free) != slotsMax-1 {
		t.Errorf("%d connections, %d free", len(again.at), len(again.free))
	}
}
