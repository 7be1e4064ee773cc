package daemon

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/sys/lock"
)

// takeRunDir claims the run directory for this daemon.
func (d *Daemon) takeRunDir() error {
	if err := os.MkdirAll(d.runDir, 0o700); err != nil {
		return fmt.Errorf("make run directory: %w; choose another with --run-dir", err)
	}
	path := filepath.Join(d.runDir, api.AgentName+".lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("lock run directory: %w; choose another with --run-dir", err)
	}
	if err := lock.TakeFromKilled(f); err != nil {
		holder, _ := os.ReadFile(path)
		f.Close()
		return fmt.Errorf("another agent, process %s, uses the run directory %s; stop that one, or choose another with --run-dir",
			bytes.TrimSpace(holder), d.runDir)
	}
	d.lock = f
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintln(f, os.Getpid())
	}
	if err != nil {
		return fmt.Errorf("lock run directory: %w; make room, or choose another with --run-dir", err)
	}
	return nil
}
