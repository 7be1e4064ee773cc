package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/config"
	"github.com/tsugiki/tsugiki/internal/sys/thread"
	"github.com/tsugiki/tsugiki/internal/testkit/script"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"tsugiki-runtime": main})
}

// TestScripts runs the scripts of testdata/script, with a shell script as the real runtime.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds:                script.Commands(withoutConfig),
	})
}

// withoutConfig calls a function in a mount namespace of its own, in which the machine's
// configuration file, which the command reads, is not there.
func withoutConfig(run func() error) error {
	dir := filepath.Dir(config.DefaultPath)
	if _, err := os.Stat(dir); err != nil {
		return run()
	}
	return thread.Do(func() error {
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount("none", dir, "tmpfs", 0, "")
		}
		if err != nil {
			return fmt.Errorf("hide %s: %w", dir, err)
		}
		return run()
	})
}
