package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/agent/vm"
	"github.com/tsugiki/tsugiki/charge/accounts"
	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/internal/kernel"
	"github.com/tsugiki/tsugiki/internal/launch"
	"github.com/tsugiki/tsugiki/internal/programs"
	"github.com/tsugiki/tsugiki/internal/sys/thread"
	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/enforcer"
	"github.com/tsugiki/tsugiki/shim"
)

// Examine tries the kernel features and looks for the programs that containers need. It removes
// what it makes.
func Examine(runDir string) ([]kernel.Result, error) {
	return kernel.Examine(slices.Concat(kernel.Features(), installation(runDir), accounts.Features(), vm.Features()))
}

// Clean removes the pinned policy programs of all versions from the kernel. Containers go on. It
// needs root.
func Clean() error { return enforcer.Unpin() }

func installation(runDir string) []kernel.Feature {
	find := func(name string) func(*kernel.Scratch) (string, error) {
		return func(*kernel.Scratch) (string, error) { return programs.Find(name) }
	}
	return []kernel.Feature{
		{Name: "policy programs", Required: true, Lost: "rules are not enforced", Probe: loadPolicy},
		{
			Name:  "pinned policy programs",
			Lost:  "each tsugiki run without an agent has the kernel verify the policy programs again, which takes most of its start",
			Probe: func(*kernel.Scratch) (string, error) { return enforcer.Pins() },
		},
		{Name: keeper.Program, Required: true, Lost: "sockets cannot be made in the host's namespace", Probe: find(keeper.Program)},
		{Name: launch.Program, Required: true, Lost: "tsugiki run starts no program", Probe: find(launch.Program)},
		{Name: gate.Program, Required: true, Lost: "trapped calls are not answered", Probe: find(gate.Program)},
		{Name: "libtsugiki.so", Required: true, Lost: "only --mode seccomp works", Probe: find(shim.LibraryFile)},
		{
			Name: "libtsugiki.so for all users",
			Lost: "programs of users other than root do not load the library, and need more round trips",
			Probe: func(*kernel.Scratch) (string, error) {
				path, err := programs.Find(shim.LibraryFile)
				if err != nil {
					return "", err
				}
				return "", readableByOthers(path)
			},
		},
		{
			Name: "run directory", Required: true, Lost: "the state of containers cannot be stored",
			Probe: func(*kernel.Scratch) (string, error) { return runDir, writable(runDir) },
		},
	}
}

// loadPolicy attaches the kernel programs, with no rules, to an empty cgroup.
func loadPolicy(s *kernel.Scratch) (string, error) {
	g, err := s.Trial()
	if err != nil {
		return "", err
	}
	dir, err := g.Open()
	if err != nil {
		return "", err
	}
	defer dir.Close()
	table, err := policy.NewTable(nil, nil)
	if err != nil {
		return "", err
	}
	e, err := enforcer.Enforce(dir, table, nil)
	if err != nil {
		return "", err
	}
	return "", e.Close()
}

// nobody is a user who owns nothing.
const nobody = 65534

// readableByOthers opens a file as a user without any rights, on a thread that ends afterwards. A
// caller other than root opens the file as the caller's own user.
func readableByOthers(path string) error {
	err := thread.Do(func() error {
		if os.Geteuid() == 0 {
			for _, call := range [][2]uintptr{{unix.SYS_SETGROUPS, 0}, {unix.SYS_SETFSGID, nobody}, {unix.SYS_SETFSUID, nobody}} {
				if _, _, errno := unix.RawSyscall(call[0], call[1], 0, 0); errno != 0 {
					return kernel.Untold("unknown, because the process cannot become another user: " + errno.Error())
				}
			}
		}
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) // access(2) asks for the real user
		if err == nil {
			unix.Close(fd)
		}
		return err
	})
	if errno := unix.Errno(0); errors.As(err, &errno) {
		// Not ErrPermission: this process itself has the permission.
		return fmt.Errorf("open %s as another user: %s; install it where all users can read it", path, errno.Error())
	}
	return err
}

// writable returns an error if the directory cannot be made, or files cannot be made in it.
func writable(dir string) error {
	for {
		err := unix.Access(dir+"/.", unix.W_OK|unix.X_OK)
		parent := filepath.Dir(dir)
		if !errors.Is(err, fs.ErrNotExist) || parent == dir {
			if err != nil {
				err = fmt.Errorf("write to %s: %w; choose another with --run-dir", dir, err)
			}
			return err
		}
		dir = parent
	}
}
