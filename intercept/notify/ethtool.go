package notify

import (
	"encoding/binary"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/tracee"
)

// throughMax is how much a request can read and write where its struct ifreq points.
const throughMax = 64 << 10

// offData is where a struct ifreq has its pointer.
const offData = 16

// ethtoolReads are the commands of SIOCETHTOOL that the kernel lets anybody give, which
// change nothing (net/ethtool/ioctl.c). The others want CAP_NET_ADMIN.
var ethtoolReads = []uint32{
	unix.ETHTOOL_GSET, unix.ETHTOOL_GDRVINFO, unix.ETHTOOL_GMSGLVL, unix.ETHTOOL_GLINK, unix.ETHTOOL_GCOALESCE,
	unix.ETHTOOL_GRINGPARAM, unix.ETHTOOL_GPAUSEPARAM, unix.ETHTOOL_GRXCSUM, unix.ETHTOOL_GTXCSUM, unix.ETHTOOL_GSG,
	unix.ETHTOOL_GSSET_INFO, unix.ETHTOOL_GSTRINGS, unix.ETHTOOL_GSTATS, unix.ETHTOOL_GPHYSTATS, unix.ETHTOOL_GTSO,
	unix.ETHTOOL_GPERMADDR, unix.ETHTOOL_GUFO, unix.ETHTOOL_GGSO, unix.ETHTOOL_GGRO, unix.ETHTOOL_GFLAGS,
	unix.ETHTOOL_GPFLAGS, unix.ETHTOOL_GRXFH, unix.ETHTOOL_GRXRINGS, unix.ETHTOOL_GRXCLSRLCNT, unix.ETHTOOL_GRXCLSRULE,
	unix.ETHTOOL_GRXCLSRLALL, unix.ETHTOOL_GRXFHINDIR, unix.ETHTOOL_GRSSH, unix.ETHTOOL_GFEATURES, unix.ETHTOOL_GCHANNELS,
	unix.ETHTOOL_GET_TS_INFO, unix.ETHTOOL_GEEE, unix.ETHTOOL_GTUNABLE, unix.ETHTOOL_PHY_GTUNABLE, unix.ETHTOOL_GLINKSETTINGS,
	unix.ETHTOOL_GFECPARAM,
}

// ethtoolNothing is no command.
const ethtoolNothing = 0xffffffff

// readThrough makes a request that reads and writes where its struct ifreq points. How
// much that is, each command says in another way. So the request has a copy of what the
// program has there, and all up to the last byte that has changed is written back. A
// page behind the copy that nobody can write to ends what the kernel writes.
func (r *interfaceRequest) readThrough() error {
	var ifreq [ifreqSize]byte
	if err := r.memory.Read(r.at, ifreq[:]); err != nil {
		return err
	}
	e := binary.NativeEndian
	at := e.Uint64(ifreq[offData:])
	mapped, err := unix.Mmap(-1, 0, throughMax+os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(mapped) }()
	if err := unix.Mprotect(mapped[throughMax:], unix.PROT_NONE); err != nil {
		return err
	}
	data := mapped[:throughMax]
	n, err := r.memory.ReadSome(at, data)
	if err != nil {
		return err
	}
	if n < 4 {
		return tracee.ErrFault
	}
	if r.number == unix.SIOCETHTOOL && !slices.Contains(ethtoolReads, e.Uint32(data)) {
		e.PutUint32(data, ethtoolNothing) // the kernel says what it says to who may not
	}
	before := slices.Clone(data)
	e.PutUint64(ifreq[offData:], uint64(uintptr(unsafe.Pointer(&data[0]))))
	if err := r.call(unsafe.Pointer(&ifreq)); err != nil {
		return err
	}
	last := len(data)
	for last > 0 && data[last-1] == before[last-1] {
		last--
	}
	if last == 0 {
		return nil
	}
	return r.memory.Write(at, data[:last])
}
