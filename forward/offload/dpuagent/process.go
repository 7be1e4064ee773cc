package dpuagent

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/forward/offload/dpu"
	"github.com/tsugiki/tsugiki/forward/offload/ovsdb"
	"github.com/tsugiki/tsugiki/internal/sys/proc"
)

// probeTimeout is how long ovs-vswitchd may take to answer: it answers between two rounds of its
// main loop, which can take long when thousands of flows change.
const probeTimeout = 10 * time.Second

// vswitchd is one life of ovs-vswitchd.
type vswitchd struct {
	pid        int
	generation string
}

// findVswitchd reads the file in which ovs-vswitchd writes its process id.
func findVswitchd(runDir string) (vswitchd, error) {
	if err := runDirExists(runDir); err != nil {
		return vswitchd{}, err
	}
	text, err := os.ReadFile(filepath.Join(runDir, "ovs-vswitchd.pid"))
	if err != nil {
		return vswitchd{}, fmt.Errorf("ovs-vswitchd does not run: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return vswitchd{}, fmt.Errorf("read ovs-vswitchd.pid: %w", err)
	}
	stat, err := proc.ReadStat(pid)
	if err != nil || stat.Ended() {
		return vswitchd{}, fmt.Errorf("ovs-vswitchd has ended; start it: systemctl start openvswitch-switch")
	}
	return vswitchd{pid, generationOf(pid, stat)}, nil
}

// generationOf names a process for good: a number can be another process's after the next boot.
func generationOf(pid int, stat proc.Stat) string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	digest := sha256.Sum256(fmt.Appendf(boot, "%d %d", pid, stat.Start))
	return fmt.Sprintf("%x", digest[:8])
}

// probe asks br-int for the beginning of OpenFlow: it comes from ovs-vswitchd's main loop.
func (a *Agent) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := ovsdb.Dial(ctx, filepath.Join(a.RunDir, dpu.OpenFlow.SocketName()))
	if err != nil {
		return fmt.Errorf("ovs-vswitchd has no bridge %s: %w", dpu.Bridge, err)
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(probeTimeout)); err != nil {
		return err
	}
	var hello [8]byte // version, OFPT_HELLO, length, id: OpenFlow 1.5, section 7.1.1
	if _, err := io.ReadFull(conn, hello[:]); err != nil {
		return fmt.Errorf("ovs-vswitchd does not answer: %w", err)
	}
	if hello[1] != 0 {
		return fmt.Errorf("ovs-vswitchd says no hello, but message %d of OpenFlow", hello[1])
	}
	return nil
}

// appctl calls a command of ovs-vswitchd (ovs-appctl(8)), in JSON-RPC 1.0.
func (a *Agent) appctl(pid int, command string, args ...string) error {
	conn, err := net.DialTimeout("unix", filepath.Join(a.RunDir, fmt.Sprintf("ovs-vswitchd.%d.ctl", pid)), probeTimeout)
	if errors.Is(err, fs.ErrNotExist) {
		conn, err = net.DialTimeout("unix", filepath.Join(a.RunDir, "ovs-vswitchd.ctl"), probeTimeout)
	}
	if err != nil {
		return fmt.Errorf("reach ovs-vswitchd: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(probeTimeout)); err != nil {
		return err
	}
	request := map[string]any{"id": 0, "method": command, "params": append([]string{}, args...)}
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	var answer struct {
		Error any `json:"error"`
	}
	if err := json.NewDecoder(conn).Decode(&answer); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	if answer.Error != nil {
		return fmt.Errorf("%s: %v", command, answer.Error)
	}
	return nil
}
