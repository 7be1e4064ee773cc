package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tsugiki/tsugiki/bench/roundtrip"
	"github.com/tsugiki/tsugiki/internal/cni"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/programs"
)

// attach makes a pod, and has tsugiki-cni attach it to the node's switch.
func (f *fabric) attach(ctx context.Context, n *node, name string, direct bool) (pod roundtrip.End, err error) {
	if pod.NS, err = f.namespace(); err != nil {
		return pod, err
	}
	config, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": fmt.Sprintf("node%d", n.number), "type": "tsugiki-cni", "mode": "dpu", "pairs": "all", "directForward": direct,
		"dpu": map[string]any{"endpoint": n.endpoint(), "card": "emulated"},
		"ipam": map[string]any{
			"type": "host-local", "dataDir": filepath.Join(n.dir, "leases"), "ranges": [][]any{{map[string]any{"subnet": subnet(n.number)}}},
			"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
		},
	})
	if err != nil {
		return pod, err
	}
	out, err := n.plugin(ctx, "ADD", name, pod.NS, config)
	if err != nil {
		return pod, err
	}
	result := &current.Result{}
	if err := json.Unmarshal(out, result); err != nil {
		return pod, fmt.Errorf("read result of ADD: %w", err)
	}
	var ok bool
	if len(result.IPs) == 1 {
		pod.Addr, ok = netip.AddrFromSlice(result.IPs[0].Address.IP.To4())
	}
	if !ok {
		return pod, fmt.Errorf("ADD gives the addresses %v", result.IPs)
	}
	return pod, nil
}

// plugin calls tsugiki-cni on the node's host.
func (n *node) plugin(ctx context.Context, command, name string, pod *netns.NS, config []byte) ([]byte, error) {
	program, err := programs.FindIn("tsugiki-cni", []string{n.bin})
	if err != nil {
		return nil, err
	}
	others, err := cni.Find()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Stdin = bytes.NewReader(config)
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+name, "CNI_IFNAME=eth0", "CNI_NETNS="+cni.NSPath(pod), "CNI_PATH="+others)
	out, err := n.output(n.host, cmd)
	if err != nil {
		return nil, fmt.Errorf("%s of pod %s: %w: %s", command, name, err, bytes.TrimSpace(out))
	}
	return out, nil
}
