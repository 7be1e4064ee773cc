package rig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/bundle"
)

func (r *Rig) rootfs() string { return filepath.Join(r.dir, "rootfs") }

// makeRootfs makes the file system from which all containers are made.
func (r *Rig) makeRootfs() error {
	for _, name := range []string{"files", "bundles", "rootfs", "state"} {
		if err := os.MkdirAll(filepath.Join(r.dir, name), 0o755); err != nil {
			return err
		}
	}
	return bundle.Root(r.rootfs()).Make()
}

// Put writes a file into the rootfs, and makes its folders.
func (r *Rig) Put(path string, data []byte, mode os.FileMode) error {
	return bundle.Root(r.rootfs()).Put(path, data, mode)
}

// Install copies programs of the machine, by name or path, into /bin of the rootfs, and their
// libraries to the same paths as on the machine. Busybox is always there, with links for the useful
// applets.
func (r *Rig) Install(list ...string) error { return bundle.Root(r.rootfs()).Install(list...) }

// makeRoot makes the root file system of a container, and returns its path.
func (c *Container) makeRoot() (string, error) {
	switch c.spec.Storage {
	case Overlay:
		merged, err := c.rig.mountOverlay(c.dir(), c.rig.rootfs())
		if err == nil {
			c.mounted = merged
		}
		return merged, err
	case Dir:
		root := filepath.Join(c.dir(), "root")
		return root, bundle.Root(c.rig.rootfs()).CopyTo(root)
	case Shared:
		return c.rig.rootfs(), nil
	}
	return "", fmt.Errorf("storage %q is none of %s, %s and %s", c.spec.Storage, Overlay, Dir, Shared)
}

// mountOverlay mounts an overlay in a folder. Only the rig's commands and the containers see it.
func (r *Rig) mountOverlay(dir, lower string) (merged string, err error) {
	merged, upper, work := filepath.Join(dir, "merged"), filepath.Join(dir, "upper"), filepath.Join(dir, "work")
	for _, d := range []string{merged, upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return "", err
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, upper, work)
	err = r.host.do(func() error { return unix.Mount("overlay", merged, "overlay", 0, options) })
	if errors.Is(err, unix.ENODEV) {
		return "", fmt.Errorf("mount overlay: %w; the kernel has no overlayfs, choose --storage dir", err)
	}
	if errors.Is(err, unix.EINVAL) {
		return "", fmt.Errorf("mount overlay: %w; %s may be on an overlay itself, choose another folder with --work-dir", err, dir)
	}
	if err != nil {
		return "", fmt.Errorf("mount overlay: %w", err)
	}
	return merged, nil
}

func (r *Rig) unmount(merged string) error {
	err := r.host.do(func() error { return unix.Unmount(merged, unix.MNT_DETACH) })
	if err != nil {
		return fmt.Errorf("unmount %s: %w", merged, err)
	}
	return nil
}

// In runs fn on a thread that sees the rig's mounts and is in the namespace that stands for the
// host. Commands of other methods wait until fn returns.
func (r *Rig) In(fn func() error) error { return r.host.do(fn) }
