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
//	/sys/fs/bpf/tsugiki/       root's, mode 0700; whoever changes it has it locked
//	  KEY/connect4 …           a set: its programs, its maps, and
//	  KEY/last_number          the number that was given last
//	  new-KEY/                 a set that is being pinned
//	  old-KEY/                 a set that has no more numbers, about to be removed
//
// KEY is a digest of the compiled programs, of the kernel and of pinLayout. So a process opens
// only what it would have loaded itself. A set is pinned under another name and then renamed: it
// is there as a whole or not at all.
//
// Nobody waits for the lock. Where another process has it, where a pin is missing, or where
// somebody but root may write, a process loads a set that is its own alone. Pins may be removed at
// any time: an attached program stays attached, and keeps its maps.
//
// last_number is shared memory. Each process takes the next number by an atomic addition, so no
// number is given twice, whoever is killed when.
//
// The set that succeeds one has its common tables. Where the pins are of a set that has other ones
// than this process uses, because somebody has removed the pins since, the process loads its own.

// pinLayout is another one whenever this version could not use the pins of the last.
const pinLayout = "2"

// lastNumber is the name of the pin that no map of the object has.
const lastNumber = "last_number"

// The BPF file system, and our directory in it. Tests have others.
var (
	bpffs      = "/sys/fs/bpf"
	pinsFolder = "tsugiki"
)

// atStep is called at each step of pinning a set; tests end the process there.
var atStep = func(string) {}

// errNoBPFFS says that the file system in which sets are pinned is not there.
var errNoBPFFS = errors.New("no BPF file system")

// pins is our directory in the BPF file system.
type pins struct{ dir *os.File }

// Pins finds out where sets of programs are pinned, or why nowhere. It makes the directory. It
// needs root, and a BPF file system at /sys/fs/bpf where nobody else may replace the directory.
func Pins() (path string, err error) {
	p, err := openPins()
	if err != nil {
		return "", err
	}
	return filepath.Join(bpffs, pinsFolder), p.dir.Close()
}

// Unpin removes all pinned sets, those of other versions too. It needs root. What is attached
// stays so. The next process that needs a set loads one.
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

// openOwn opens a directory that nobody but root may write.
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

// checkOwner refuses a directory in which others than root may put something in the place of what
// is root's. In one with the mode bit `or` (S_ISVTX), others write, but replace only their own.
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

// checkPin refuses a pin that another than root has made, or may use.
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

// pathIn leads to what is in an open directory, wherever that was moved.
func pathIn(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}

// pinKey is the name of the directory with a set that this process can use.
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

// shares returns the set that is pinned; or it loads one, and pins that if nobody else is about to.
// It has the common tables of a set that this process uses, unless that is nil.
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

// find opens the pinned set, or returns nil: there is none that this process can use.
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

// serves tells whether new containers of a process may be of a set that find has returned. former is
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

// count has the set take numbers from a map of one word, which stays mapped until close.
func (s *set) count(counter *ebpf.Map) (err error) {
	s.shared, err = unix.Mmap(counter.FD(), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map numbers of containers: %w", err)
	}
	s.last = (*uint32)(unsafe.Pointer(&s.shared[0]))
	return nil
}

// pin makes a set the one that others find, with p locked. The set counts its numbers for all of
// them from the moment that they could find it.
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
	// The set that is in the way is used up, or cannot be used.
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

// removeAllBut removes what killed processes and other versions have left, with p locked.
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

// eachPin calls fn with each map or program of a struct that bpf2go has written, and its name.
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
