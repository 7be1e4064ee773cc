package vsock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// sendRaw makes a chain available that the test has written.
func (d *driver) sendRaw() { d.make(txQueue, 0) }

func TestHostileRings(t *testing.T) {
	at := buffer(txQueue, 0)
	for name, attack := range map[string]func(d *driver){
		"descriptor out of the ring": func(d *driver) { d.make(txQueue, testRing) },
		"next out of the ring": func(d *driver) {
			d.descriptor(txQueue, 0, at, headerSize, descNext, testRing)
			d.sendRaw()
		},
		"a loop": func(d *driver) {
			d.descriptor(txQueue, 0, at, 1, descNext, 1)
			d.descriptor(txQueue, 1, at, 1, descNext, 0)
			d.sendRaw()
		},
		"beyond memory": func(d *driver) {
			d.descriptor(txQueue, 0, testMemory-8, headerSize, 0, 0)
			d.sendRaw()
		},
		"address wraps": func(d *driver) {
			d.descriptor(txQueue, 0, ^uint64(0)-8, headerSize, 0, 0)
			d.sendRaw()
		},
		"address of the VMM": func(d *driver) {
			d.descriptor(txQueue, 0, testUser+testMemory, headerSize, 0, 0)
			d.sendRaw()
		},
		"a large chain": func(d *driver) {
			for i := range 3 {
				d.descriptor(txQueue, i, at, chainMax/2, descNext, uint16(i+1))
			}
			d.sendRaw()
		},
		"writable": func(d *driver) {
			d.descriptor(txQueue, 0, at, headerSize, descWrite, 0)
			d.sendRaw()
		},
		"indirect": func(d *driver) {
			d.descriptor(txQueue, 0, at, headerSize, 4, 0)
			d.sendRaw()
		},
		"short header": func(d *driver) {
			d.descriptor(txQueue, 0, at, headerSize-1, 0, 0)
			d.sendRaw()
		},
		"long packet": func(d *driver) {
			h := header{from: testCID, to: HostCID, typ: Stream, op: opData, length: 1}
			raw := h.bytes()
			copy(d.mem[at:], raw[:])
			d.descriptor(txQueue, 0, at, headerSize, 0, 0)
			d.sendRaw()
		},
		"too many chains": func(d *driver) {
			head(d.mem[ringAt(txQueue)+0x1000:]).Store(uint32(testRing+1) << 16)
			d.kick(txQueue)
		},
		"read-only buffer": func(d *driver) {
			for i := range testRing {
				d.descriptor(rxQueue, i, buffer(rxQueue, i), 4096, 0, 0)
			}
			d.give(header{fromPort: 1, toPort: 2, op: opData}, nil) // the answer needs one
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDriver(t)
			d.start()
			attack(d)
			if err := d.wantEnd(); !errors.Is(err, ErrGuest) {
				t.Errorf("the device ended: %v", err)
			}
		})
	}
}

func TestHostileVMM(t *testing.T) {
	for name, attack := range map[string]func(d *driver){
		"no such message": func(d *driver) { d.tell(77, nil) },
		"short message":   func(d *driver) { d.tell(setVringAddr, words(0)) },
		"ring 3":          func(d *driver) { d.tell(setVringNum, words(3, 16)) },
		"odd ring": func(d *driver) {
			d.tell(setVringNum, words(0, 17))
			d.tell(setVringAddr, append(words(0, 0), doubles(testUser, testUser, testUser, 0)...))
		},
		"no memory": func(d *driver) { d.tell(setVringAddr, append(words(0, 0), doubles(0, 0, 0, 0)...)) },
		"not aligned": func(d *driver) {
			d.tell(setVringAddr, append(words(0, 0), doubles(testUser+4, testUser, testUser+2, 0)...))
		},
		"nine regions":    func(d *driver) { d.tell(setMemTable, append(words(9, 0), make([]byte, 9*32)...), d.file) },
		"no file":         func(d *driver) { d.tell(setMemTable, append(words(1, 0), doubles(0, 4096, 0, 0)...)) },
		"beyond the file": func(d *driver) { d.tell(setMemTable, append(words(1, 0), doubles(0, testMemory+1, 0, 0)...), d.file) },
		"offset wraps": func(d *driver) {
			d.tell(setMemTable, append(words(1, 0), doubles(0, 4096, 0, ^uint64(0)-4095)...), d.file)
		},
		"no kick":     func(d *driver) { d.tell(setVringKick, doubles(0)) },
		"features":    func(d *driver) { d.tell(setFeatures, doubles(offered|1<<28)) },
		"config":      func(d *driver) { d.tell(getConfig, words(9, 1, 0)) },
		"flags":       func(d *driver) { _, _ = d.vmm.Write(words(1, 0, 0)) },
		"long":        func(d *driver) { _, _ = d.vmm.Write(words(1, messageVersion, payloadMax+1)) },
		"cut message": func(d *driver) { _, _ = d.vmm.Write(words(1)); d.vmm.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDriver(t)
			d.start()
			attack(d)
			if err := d.wantEnd(); err == nil {
				t.Error("the device ended without an error")
			}
		})
	}
}

// lists returns the lengths of the device's lists of connections.
func (d *driver) lists() (ready, starved, conns int) {
	d.t.Helper()
	done := make(chan struct{})
	if !d.device.post(func() {
		ready, starved, conns = len(d.device.ready), len(d.device.starved), len(d.device.conns)
		close(done)
	}) {
		d.t.Fatal("the device has ended")
	}
	<-done
	return ready, starved, conns
}

// TestGuestTakesNothing has a guest without receive buffers begin and end connections that have packets
// for it. The device keeps none of them.
func TestGuestTakesNothing(t *testing.T) {
	d := newDriver(t)
	d.setUp()
	for range 10 {
		d.send(header{fromPort: 1000, toPort: 80, op: opRequest, alloc: testAlloc}, nil)
		<-d.asked
		d.send(header{fromPort: 1000, toPort: 80, op: opCreditRequest, alloc: testAlloc}, nil)
		d.send(header{fromPort: 1000, toPort: 80, op: opReset}, nil)
	}
	if ready, starved, conns := d.lists(); ready+starved+conns > 0 {
		t.Errorf("the device has %d connections, %d ready ones, %d starved ones", conns, ready, starved)
	}
}

// TestStarvedConnectionEnds has a guest end a connection whose message waits for more buffers.
func TestStarvedConnectionEnds(t *testing.T) {
	d := newDriver(t)
	d.start()
	peer := d.connect(1000, SeqPacket)
	if _, err := peer.Write(make([]byte, testAlloc-1)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, func() error {
		if _, starved, _ := d.lists(); starved != 1 {
			return fmt.Errorf("%d connections are starved", starved)
		}
		return nil
	})
	d.send(header{fromPort: 1000, toPort: 80, op: opReset, typ: SeqPacket}, nil)
	if ready, starved, conns := d.lists(); ready+starved+conns > 0 {
		t.Errorf("the device has %d connections, %d ready ones, %d starved ones", conns, ready, starved)
	}
}

// TestMemoryShrinks takes the guest's memory away while the device uses it.
func TestMemoryShrinks(t *testing.T) {
	d := newDriver(t)
	d.start()
	if err := unix.Ftruncate(d.file, 0); err != nil {
		t.Fatal(err)
	}
	d.kick(txQueue)
	if err := d.wantEnd(); !errors.Is(err, ErrGuest) {
		t.Errorf("the device ended: %v", err)
	}
}

// FuzzTransmit writes what a guest may write into its descriptors and packets. The device answers or
// ends, and does neither crash nor hang.
func FuzzTransmit(f *testing.F) {
	h := header{from: testCID, to: HostCID, fromPort: 1000, toPort: 80, typ: Stream, op: opData, length: 4, alloc: testAlloc}
	raw := h.bytes()
	f.Add(raw[:], []byte("data"), uint16(0), uint32(headerSize+4), uint16(0), uint64(0))
	f.Add(raw[:], []byte("data"), uint16(descNext), uint32(headerSize), uint16(0), uint64(1<<63))
	f.Fuzz(func(t *testing.T, packet, data []byte, flags uint16, size uint32, next uint16, addr uint64) {
		d := newDriver(t)
		d.start()
		d.connect(1000, Stream)
		at := buffer(txQueue, 0)
		copy(d.mem[at:at+bufferSize], packet)
		copy(d.mem[at+headerSize:at+bufferSize], data)
		d.descriptor(txQueue, 0, at+addr, size, flags, next)
		d.descriptor(txQueue, 1, at, uint32(len(data)), 0, 0)
		binary.LittleEndian.PutUint16(d.mem[ringAt(txQueue)+0x1000:], uint16(addr>>48)) // the ring's flags
		d.sendRaw()
		if err := d.end(); err != nil && !errors.Is(err, ErrGuest) {
			t.Errorf("the device ended: %v", err)
		}
	})
}
