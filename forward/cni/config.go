package cni

import (
	"encoding/json"
	"fmt"
	"net"
	"regexp"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

// Error codes of the plugin, besides those of the CNI specification.
const (
	codeClash     uint = 100 // a name, MAC or IP address is another's
	codeNetwork   uint = 101 // the bridge or the switch cannot be used
	codeAddresses uint = 102 // the IPAM plugin gives no address
	codeDrift     uint = 103 // CHECK: something is not as ADD made it
	codeKernel    uint = 104 // the kernel refuses something
	codeNoService uint = 50  // STATUS: ADD would fail (CNI specification 1.1)
)

// The modes of a network.
const (
	modeBridge = "bridge"
	modeOVS    = "ovs"
	modeDPU    = "dpu"
	// modeLoopback is that of pods without a link (loopback.go).
	modeLoopback = "loopback"
)

// config is the plugin's configuration. docs/design/forward.md has a line for each key.
type config struct {
	types.PluginConf
	Mode          string  `json:"mode"`
	Bridge        string  `json:"bridge"`
	Routed        bool    `json:"routed"`
	IsGateway     bool    `json:"isGateway"`
	MTU           int     `json:"mtu"`
	DirectForward bool    `json:"directForward"`
	Pairs         string  `json:"pairs"`
	AntiSpoof     bool    `json:"antiSpoof"`
	OVSDB         string  `json:"ovsdb"`
	DPU           dpuKeys `json:"dpu"`
	RuntimeConfig struct {
		MAC string `json:"mac"`
	} `json:"runtimeConfig"`

	mac     net.HardwareAddr // that the runtime wants; nil: a random one
	prev    *current.Result  // of the plugins before this one; nil: there are none
	chained bool             // another plugin makes the link, or there is none
}

// failure is types.NewError with a formatted message.
func failure(code uint, format string, args ...any) *types.Error {
	return types.NewError(code, fmt.Sprintf(format, args...), "")
}

// linkNamePattern matches the accepted names of links.
var linkNamePattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}$`)

// parse reads the configuration and sets defaults.
func parse(args *skel.CmdArgs) (*config, error) {
	c := &config{Mode: modeBridge, IsGateway: true, DirectForward: true, Pairs: "listed", AntiSpoof: true, OVSDB: "unix:/run/openvswitch/db.sock"}
	if err := json.Unmarshal(args.StdinData, c); err != nil {
		return nil, failure(types.ErrDecodingFailure, "read configuration: %v", err)
	}
	if err := version.ParsePrevResult(&c.PluginConf); err != nil {
		return nil, failure(types.ErrDecodingFailure, "read prevResult: %v", err)
	}
	if c.PrevResult != nil {
		prev, err := current.NewResultFromResult(c.PrevResult)
		if err != nil {
			return nil, failure(types.ErrDecodingFailure, "read prevResult: %v", err)
		}
		c.prev = prev
	}
	c.chained = c.IPAM.Type == ""
	return c, c.validate()
}

// validate refuses a configuration that cannot work, and completes any other.
func (c *config) validate() error {
	wrong := func(format string, args ...any) error {
		return failure(types.ErrInvalidNetworkConfig, format, args...)
	}
	switch {
	case c.Mode != modeBridge && c.Mode != modeOVS && c.Mode != modeDPU && c.Mode != modeLoopback:
		return wrong("mode %q is unknown; write bridge, ovs, dpu or loopback", c.Mode)
	case c.Mode == modeLoopback && (c.Bridge != "" || c.Routed || c.MTU != 0 || !c.chained || c.RuntimeConfig.MAC != ""):
		return wrong("mode loopback makes no link; leave out bridge, routed, mtu, ipam and the MAC address")
	case c.Routed && (c.Mode != modeBridge || c.Bridge != ""):
		return wrong("routed has no bridge; leave out bridge, and use mode bridge")
	case c.MTU != 0 && (c.MTU < 576 || c.MTU > 65535):
		return wrong("mtu %d is not in 576..65535; leave it out for the network's own", c.MTU)
	case c.Pairs != "listed" && c.Pairs != "all":
		return wrong("pairs %q is unknown; write listed or all", c.Pairs)
	case strings.ContainsAny(c.IPAM.Type, "/\\"):
		return wrong("ipam.type %q is a path; write a plugin's name, like host-local", c.IPAM.Type)
	case c.Mode == modeOVS && c.chained:
		return wrong("ipam is missing; in mode ovs this plugin makes the link, and no plugin before it does")
	case !strings.HasPrefix(c.OVSDB, "unix:/") && c.Mode == modeOVS:
		return wrong("ovsdb %q is no unix socket; write unix:/PATH", c.OVSDB)
	}
	if c.Mode == modeDPU {
		if err := c.DPU.check(c); err != nil {
			return wrong("%v", err)
		}
	}
	if c.Mode == modeLoopback {
		c.DirectForward, c.AntiSpoof = false, false
	}
	if c.Bridge == "" && !c.Routed {
		c.Bridge = map[string]string{modeBridge: "tsugiki0", modeOVS: "br-int", modeDPU: "br-int"}[c.Mode]
	}
	if c.Bridge != "" && !linkNamePattern.MatchString(c.Bridge) {
		return wrong("bridge %q is no name of a link: it has up to 15 letters, digits, _, . and -", c.Bridge)
	}
	if wanted := c.RuntimeConfig.MAC; wanted != "" {
		mac, err := net.ParseMAC(wanted)
		if err != nil || len(mac) != 6 || mac[0]&1 != 0 {
			return wrong("the MAC address %q in runtimeConfig is none that a link can have", wanted)
		}
		c.mac = mac
	}
	return nil
}

// programs tells whether kernel programs are attached to the pod's link.
func (c *config) programs() bool {
	return c.DirectForward || c.AntiSpoof || c.Mode == modeOVS || c.Mode == modeDPU
}
