package rig

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/tsugiki/tsugiki/internal/ldd"

	"golang.org/x/sys/unix"
)

// applets of busybox have links in /bin; the others are called as "busybox NAME".
var applets = []string{
	"cat", "chmod", "cp", "dd", "echo", "env", "false", "find", "head", "httpd", "ip", "ls", "mkdir", "nc", "nproc",
	"printf", "ps", "rm", "sed", "sh", "sleep", "sync", "tail", "test", "touch", "tr", "true", "wc", "wget", "yes",
}

func (r *Rig) rootfs() string { return filepath.Join(r.dir, "rootfs") }

// makeRootfs makes the file system that all containers are made of.
func (r *Rig) makeRootfs() error {
	folders := []string{"files", "bundles", "rootfs", "state"}
	for _, name := range []string{"bin", "dev", "etc", "home", "proc", "run", "sys", "var/lib", "var/log"} {
		folders = append(folders, filepath.Join("rootfs", name))
	}
	for _, name := range folders {
		if err := os.MkdirAll(filepath.Join(r.dir, name), 0o755); err != nil {
			return err
		}
	}
	tmp := filepath.Join(r.rootfs(), "tmp")
	if err := errors.Join(os.Mkdir(tmp, 0o755), os.Chmod(tmp, 0o777|os.ModeSticky)); err != nil {
		return err
	}
	for path, text := range map[string]string{
		"/etc/passwd": "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"/etc/group":  "root:x:0:\nnogroup:x:65534:\n",
		"/etc/hosts":  "127.0.0.1 localhost\n",
	} {
		if err := r.Put(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	if _, err := exec.LookPath("busybox"); err != nil {
		return fmt.Errorf("busybox %w: install the package busybox-static", ErrMissing)
	}
	if err := r.Install("busybox"); err != nil {
		return err
	}
	for _, name := range applets {
		if err := os.Symlink("busybox", filepath.Join(r.rootfs(), "bin", name)); err != nil {
			return err
		}
	}
	return nil
}

// Put writes a file into the rootfs that containers are made of, and its folders.
func (r *Rig) Put(path string, data []byte, mode os.FileMode) error {
	to := filepath.Join(r.rootfs(), path)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, data, mode)
}

// Install copies programs of the machine, by name or path, into /bin of the rootfs
// that containers are made of, and their libraries to where they are on the machine.
// Busybox is there from the beginning, with links for the applets of use.
func (r *Rig) Install(list ...string) error {
	for _, program := range list {
		path, err := exec.LookPath(program)
		if err != nil {
			return fmt.Errorf("install %s in containers: it %w", program, ErrMissing)
		}
		libraries, err := ldd.Libraries(path)
		if err != nil {
			return err
		}
		files := map[string]string{filepath.Join("/bin", filepath.Base(path)): path}
		for _, library := range libraries {
			files[library] = library
		}
		for to, from := range files {
			if err := r.putCopy(to, from); err != nil {
				return fmt.Errorf("install %s in containers: %w", program, err)
			}
		}
	}
	return nil
}

func (r *Rig) putCopy(to, from string) error {
	to = filepath.Join(r.rootfs(), to)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return copyFile(to, from, 0o755)
}

func copyFile(to, from string, mode os.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(mode), out.Close())
}

// makeRoot makes the root file system of a container, and says where it is.
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
		return root, copyTree(root, c.rig.rootfs())
	}
	return "", fmt.Errorf("storage %q is neither %s nor %s", c.spec.Storage, Overlay, Dir)
}

// copyTree copies folders, files and symbolic links, the only things that a rootfs has.
func copyTree(to, from string) error {
	return filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			return errors.Join(os.MkdirAll(target, 0o755), os.Chmod(target, info.Mode()))
		case info.Mode()&os.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		}
		return copyFile(target, path, info.Mode().Perm())
	})
}

// mountOverlay mounts an overlay in a folder, where only the rig's commands and the
// containers see it.
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

// In runs fn on a thread that sees the rig's mounts, and is in the namespace that stands
// for the host. Commands of other methods wait meanwhile.
func (r *Rig) In(fn func() error) error { return r.host.do(fn) }
