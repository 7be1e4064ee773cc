package vsock

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// The guest's memory is mapped here, and the guest writes to it at any time. So what is read from
// it is copied once and then checked, and slices of it are only given to the kernel, which copies
// bytes from or to them.
//
// The VMM can make its file shorter. Then a copy raises SIGBUS, which the device's thread turns
// into an error (see Device.run), and a system call says EFAULT.

// region is a part of the guest's memory.
type region struct {
	guest, user uint64 // where it is in the guest, and in the VMM
	data        []byte
	file        int // of which it is a part, from offset on
	offset      uint64
}

// memory is the guest's memory, as the last SET_MEM_TABLE has it.
type memory []region

// regionsMax is the number of regions that a table may have (vhost-user, "Memory regions
// description").
const regionsMax = 8

// mapRegion maps a region. Without an error, the region owns the file.
func mapRegion(file int, guest, size, user, offset uint64) (region, error) {
	const page = 4096
	var st unix.Stat_t
	if err := unix.Fstat(file, &st); err != nil {
		return region{}, fmt.Errorf("look at the guest's memory: %w", err)
	}
	if size == 0 || size > math.MaxInt64-offset || guest > math.MaxUint64-size || user > math.MaxUint64-size ||
		offset > math.MaxInt64 || offset+size > uint64(st.Size) || offset%page != 0 {
		return region{}, fmt.Errorf("%w: memory of %d bytes at %d of a file of %d bytes", ErrGuest, size, offset, st.Size)
	}
	data, err := unix.Mmap(file, int64(offset), int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return region{}, fmt.Errorf("map the guest's memory: %w", err)
	}
	return region{guest, user, data, file, offset}, nil
}

func (m memory) unmap() {
	for _, r := range m {
		_ = unix.Munmap(r.data)
		unix.Close(r.file)
	}
}

// at returns size bytes at an address of the guest's. They lie in one region.
func (m memory) at(addr, size uint64) ([]byte, error) {
	return m.find(addr, size, func(r *region) uint64 { return r.guest })
}

// byUser does so for an address of the VMM's.
func (m memory) byUser(addr, size uint64) ([]byte, error) {
	return m.find(addr, size, func(r *region) uint64 { return r.user })
}

func (m memory) find(addr, size uint64, start func(*region) uint64) ([]byte, error) {
	for i := range m {
		r := &m[i]
		if off := addr - start(r); addr >= start(r) && off <= uint64(len(r.data)) && size <= uint64(len(r.data))-off {
			return r.data[off : off+size : off+size], nil
		}
	}
	return nil, fmt.Errorf("%w: no memory of %d bytes at %#x", ErrGuest, size, addr)
}
