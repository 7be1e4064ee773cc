package enforcer

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/internal/sys/lock"
)

// How processes share a set.
//
// The kernel verifies the programs each time that a process loads them. So the process that
// loads a set pins it in the BPF file system, and the next process opens the pins:
//
//	/sys/fs/bpf/tsugiki/       of root, mode 0700; locked during a change
//	  KEY/connect4 …           a set: its programs, its maps, and
//	  KEY/last_number          the number that was given last
//	  new-KEY/                 a set that is being pinned
//	  old-KEY/                 a set that has no more numbers, about to be removed
//
// KEY is a digest of the compiled programs, of the kernel and of pinLayout. So a process opens only
// a set that is equal to the one it would load itself. A set is pinned under another name and then
// renamed, so it is there as a whole or not at all.
//
// No process waits for the lock. If another process has the lock, if a pin is missing, or if a user
// other than root may write, the process loads a set of its own. Pins may be removed at any time:
// an attached program stays attached, and keeps its maps.
//
// last_number is shared memory. Each process takes the next number by an atomic addition, so no
// number is given twice, whichever process is killed at whatever time.
//
// A set has the common tables of the set before it. If the pinned set has other common tables than
// those that this process uses, because the pins were removed since, the process loads a set of its
// own.

// pinLayout changes whenever this version could not use the pins of the version before.
const pinLayout = "2"

// lastNumber is the name of the pin of the counter, which is no map of the object.
const lastNumber = "last_number"

// The BPF file system, and our directory in it. Tests replace them.
var (
	bpffs      = "/sys/fs/bpf"
	pinsFolder = "tsugiki"
)

// atStep is called at each step when a set is pinned. Tests end the process there.
var atStep = func(string) {}

// errNoBPFFS says that there is no file system in which sets can be pinned.
var errNoBPFFS = errors.New("no BPF file system")

// pins is our directory in the BPF file system.
type pins struct{ dir *os.File }

// Pins returns the directory in which sets of programs are pinned, or the reason why there is none.
// It makes the directory. It needs root, and a BPF file system at /sys/fs/bpf where nobody else may
// replace the directory.
func Pins() (path string, err error) {
	p, err := openPins()
	if err != nil {
		return "", err
	}
	return filepath.Join(bpffs, pinsFolder), p.dir.Close()
}

// Unpin removes all pinned sets, those of other versions too. It needs root. Attached programs stay
// attached. The next process that needs a set loads one.
func Unpin() error {
	p, err := openPins()
	if errors.Is(err, errNoBPFFS) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.dir.Close()
	if err := lock.TakeFromKilled(p.dir); err != nil {
		return fmt.Errorf("lock %s: %w; another process is pinning programs", p.dir.Name(), err)
	}
	if err := p.removeAllBut(""); err != nil {
		return err
	}
	return os.Remove(filepath.Join(bpffs, pinsFolder))
}

func openPins() (*pins, error) {
	root, err := openDir(unix.AT_FDCWD, bpffs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", errNoBPFFS, err)
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var system unix.Statfs_t
	if err := unix.Fstatfs(int(root.Fd()), &system); err != nil {
		return nil, fmt.Errorf("examine %s: %w", bpffs, err)
	}
	if system.Type != unix.BPF_FS_MAGIC {
		return nil, fmt.Errorf("%w at %s; mount -t bpf bpf %s makes it one", errNoBPFFS, bpffs, bpffs)
	}
	if err := checkOwner(root, unix.S_ISVTX); err != nil {
		return nil, err
	}
	if err := unix.Mkdirat(int(root.Fd()), pinsFolder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make %s in %s: %w", pinsFolder, bpffs, err)
	}
	dir, err := openOwn(root, pinsFolder)
	if err != nil {
		return nil, err
	}
	return &pins{dir}, nil
}

func openDir(at int, name string) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openOwn opens a directory in which only root may write.
func openOwn(at *os.File, name string) (*os.File, error) {
	dir, err := openDir(int(at.Fd()), name)
	if err != nil {
		return nil, err
	}
	if err := checkOwner(dir, 0); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// checkOwner refuses a directory in which users other than root may replace root's files. In a
// directory with the mode bit `or` (S_ISVTX), others may write, but they replace only their own
// files.
func checkOwner(dir *os.File, or uint32) error {
	var stat unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &stat); err != nil {
		return fmt.Errorf("examine %s: %w", dir.Name(), err)
	}
	if stat.Uid != 0 || stat.Mode&0o022 != 0 && stat.Mode&or == 0 {
		return fmt.Errorf("%s (user %d, mode %o) can be changed by others than root", dir.Name(), stat.Uid, stat.Mode&0o7777)
	}
	return nil
}

// checkPin refuses a pin that a user other than root has made or may use.
func checkPin(dir *os.File, name string) error {
	var stat unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("examine pin %s: %w", name, err)
	}
	if stat.Uid != 0 || stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Mode&0o077 != 0 {
		return fmt.Errorf("pin %s (user %d, mode %o) is not root's alone", name, stat.Uid, stat.Mode)
	}
	return nil
}

// pathIn returns a path to an entry of an open directory, wherever the directory was moved.
func pathIn(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}

// pinKey returns the name of the directory with a set that this process can use.
func pinKey() (string, error) {
	var host unix.Utsname
	if err := unix.Uname(&host); err != nil {
		return "", fmt.Errorf("identify kernel: %w", err)
	}
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%s\x00%s\x00%s\x00%s\x00", pinLayout, host.Release, host.Version, host.Machine)
	_, _ = h.Write(bpf.PolicyObject())
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// shares returns the pinned set; or it loads a set, and pins that if no other process is about to
// pin one. The set has the common tables of former, a set that this process uses, unless former is
// nil.
func (p *pins) shares(former *set) (*set, error) {
	key, err := pinKey()
	if err != nil {
		return nil, err
	}
	found := p.find(key)
	if found.serves(former) {
		return found, nil
	}
	locked := lock.Take(p.dir) == nil
	if locked { // another process may have pinned one meanwhile
		if err := found.close(); err != nil {
			return nil, err
		}
		if found = p.find(key); found.serves(former) {
			return found, nil
		}
	}
	defer func() { _ = found.close() }()
	if former == nil {
		former = found
	}
	s, err := loadOwn(former)
	if err == nil && locked && found.usedUp() {
		_ = p.pin(key, s) // without pins it serves this process
	}
	return s, err
}

// find opens the pinned set, or returns nil if there is none that this process can use.
func (p *pins) find(key string) *set {
	dir, err := openOwn(p.dir, key)
	if err != nil {
		return nil
	}
	defer dir.Close()
	s := &set{}
	if err := s.openPins(dir); err != nil {
		_ = s.close()
		return nil
	}
	return s
}

// usedUp tells whether a set that find has returned gives no more numbers. No set gives none.
func (s *set) usedUp() bool { return s == nil || atomic.LoadUint32(s.last) >= containersMax-1 }

// serves tells whether new containers of a process may use a set that find has returned. former is
// a set that the process uses, or nil.
func (s *set) serves(former *set) bool { return !s.usedUp() && s.hasTablesOf(former) }

func (s *set) openPins(dir *os.File) error {
	err := eachPin(&s.PolicyMaps, func(name string, m **ebpf.Map) (err error) {
		if s.isTheirs(m) {
			return nil
		}
		if err = checkPin(dir, name); err == nil {
			*m, err = ebpf.LoadPinnedMap(pathIn(dir, name), nil)
		}
		return err
	})
	if err != nil {
		return err
	}
	err = eachPin(&s.programs, func(name string, p **ebpf.Program) (err error) {
		if err = checkPin(dir, name); err == nil {
			*p, err = ebpf.LoadPinnedProgram(pathIn(dir, name), nil)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := checkPin(dir, lastNumber); err != nil {
		return err
	}
	counter, err := ebpf.LoadPinnedMap(pathIn(dir, lastNumber), nil)
	if err != nil {
		return err
	}
	defer counter.Close()
	return errors.Join(s.count(counter), s.beginNumbers())
}

// count makes the set take numbers from a map of one word, which stays mapped until close.
func (s *set) count(counter *ebpf.Map) (err error) {
	s.shared, err = unix.Mmap(counter.FD(), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map numbers of containers: %w", err)
	}
	s.last = (*uint32)(unsafe.Pointer(&s.shared[0]))
	return nil
}

// pin makes a set the one that other processes find. The caller has locked p. From the moment that
// others can find the set, it takes its numbers from the shared counter.
func (p *pins) pin(key string, s *set) error {
	if err := p.removeAllBut(key); err != nil {
		return err
	}
	next := "new-" + key
	if err := unix.Mkdirat(int(p.dir.Fd()), next, 0o700); err != nil {
		return fmt.Errorf("make directory of pins: %w", err)
	}
	atStep("made")
	dir, err := openOwn(p.dir, next)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := s.pinTo(dir); err != nil {
		return errors.Join(err, p.remove(next))
	}
	atStep("pinned")
	// The set with this name is used up, or cannot be used.
	if err := p.rename(key, "old-"+key); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	atStep("moved")
	if err := p.rename(next, key); err != nil {
		return err
	}
	atStep("named")
	return p.removeAllBut(key)
}

func (s *set) pinTo(dir *os.File) error {
	counter, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: lastNumber, Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE,
	})
	if err != nil {
		return fmt.Errorf("make map of numbers: %w", err)
	}
	defer counter.Close()
	used := *s.last
	if err := s.count(counter); err != nil {
		return err
	}
	*s.last = used
	if err := counter.Pin(pathIn(dir, lastNumber)); err != nil {
		return err
	}
	err = eachPin(&s.PolicyMaps, func(name string, m **ebpf.Map) error {
		if *m == nil {
			return nil
		}
		return (*m).Pin(pathIn(dir, name))
	})
	atStep("half")
	return errors.Join(err, eachPin(&s.programs, func(name string, p **ebpf.Program) error { return (*p).Pin(pathIn(dir, name)) }))
}

func (p *pins) rename(from, to string) error {
	fd := int(p.dir.Fd())
	if err := unix.Renameat2(fd, from, fd, to, unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("rename pins %s: %w", from, err)
	}
	return nil
}

// removeAllBut removes what killed processes and other versions have left. The caller has locked p.
func (p *pins) removeAllBut(key string) error {
	if _, err := p.dir.Seek(0, io.SeekStart); err != nil {
		return err
	}
	names, err := p.dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("list pins: %w", err)
	}
	var errs []error
	for _, name := range names {
		if name != key {
			errs = append(errs, p.remove(name))
		}
	}
	return errors.Join(errs...)
}

func (p *pins) remove(name string) error {
	if err := os.RemoveAll(pathIn(p.dir, name)); err != nil {
		return fmt.Errorf("remove pins: %w", err)
	}
	return nil
}

// eachPin calls fn with each map or program of a struct from bpf2go, and its name.
func eachPin[T any](objects any, fn func(name string, field *T) error) error {
	v := reflect.ValueOf(objects).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("ebpf")
		if err := fn(name, v.Field(i).Addr().Interface().(*T)); err != nil {
			return fmt.Errorf("pin %s: %w", name, err)
		}
	}
	return nil
}
