package cni

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/forward"
)

// FuzzConfiguration reads any configuration. One that is accepted is one that the plugin can use, and
// an error has a code.
func FuzzConfiguration(f *testing.F) {
	examples, err := filepath.Glob("../../examples/*.conflist")
	if err != nil || len(examples) == 0 {
		f.Fatalf("examples: %v, %v", examples, err)
	}
	for _, file := range examples {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		_, plugin, _ := strings.Cut(string(text), "[")
		f.Add([]byte(strings.TrimSpace(plugin[:strings.LastIndex(plugin, "]")])))
	}
	for _, text := range []string{
		`{"cniVersion": "1.1.0", "name": "a", "mode": "ovs", "bridge": "br-int", "mtu": 1450, "ipam": {"type": "host-local"}}`,
		`{"cniVersion": "0.4.0", "name": "a", "routed": true, "pairs": "all", "runtimeConfig": {"mac": "02:00:00:00:00:01"}, "ipam": {"type": "x"}}`,
		`{"cniVersion": "1.0.0", "name": "a", "prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "/x"}], "ips": [{"address": "198.51.100.9/24", "interface": 7}]}}`,
		`{"cniVersion": "1.0.0", "name": "a", "mode": "loopback"}`,
		`{"cniVersion": "1.1.0", "cni.dev/valid-attachments": [{"containerID": "a", "ifname": "b"}], "dns": {"nameservers": ["x"]}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		cmd, err := newCommand(&skel.CmdArgs{ContainerID: "c", IfName: "eth0", StdinData: text})
		if err != nil {
			var coded *types.Error
			if !errors.As(err, &coded) || coded.Code == 0 || coded.Msg == "" {
				t.Errorf("an error without a code: %v", err)
			}
			return
		}
		c := cmd.config
		if (cmd.plane == nil) != (c.Mode == modeLoopback) || c.MTU != 0 && (c.MTU < 576 || c.MTU > 65535) || strings.ContainsAny(c.IPAM.Type, "/\\") {
			t.Errorf("accepted: %+v", c)
		}
		if c.Bridge != "" && (len(c.Bridge) > 15 || strings.HasPrefix(c.Bridge, "-") || strings.ContainsAny(c.Bridge, "/ \n\x00")) {
			t.Errorf("accepted the bridge %q", c.Bridge)
		}
		if c.mac != nil && (len(c.mac) != 6 || c.mac[0]&1 != 0) {
			t.Errorf("accepted the MAC address %v", c.mac)
		}
		if c.prev != nil && cmd.plane != nil { // CHECK reads all of it
			_, _ = cmd.pod(&podLink{host: &netlink.Veth{}, index: 0}, c.prev)
			_, _ = cmd.otherLink()
		}
	})
}

// FuzzOwner reads any alias of a link: the owner that it names has this alias, and no other.
func FuzzOwner(f *testing.F) {
	f.Add(forward.Owner{Network: "n", Container: "c", Interface: "eth0"}.Alias())
	f.Add("tsugiki-cni a b")
	f.Add("tsugiki-cni  b c d")
	f.Fuzz(func(t *testing.T, alias string) {
		o, ok := forward.OwnerOf(alias)
		if ok && o.Alias() != alias {
			t.Errorf("%q is that of %+v, whose alias is %q", alias, o, o.Alias())
		}
		name := namesOf(o.Network, o.Container, o.Interface)
		for _, link := range []string{name.host, name.wire, name.port} {
			if !linkNamePattern.MatchString(link) {
				t.Errorf("%q is no name of a link", link)
			}
		}
	})
}
