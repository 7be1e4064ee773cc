package offload

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/pelletier/go-toml/v2"

	"github.com/tsugiki/tsugiki/forward/offload/dpu"
	"github.com/tsugiki/tsugiki/forward/offload/flows"
)

// DefaultConfig is where the configuration is.
const DefaultConfig = "/etc/tsugiki/offload.toml"

// Config is the controller's configuration file. docs/CONFIG.md has a line for each key.
type Config struct {
	DPU struct {
		Endpoint    string `toml:"endpoint"`
		Credentials string `toml:"credentials"`
	} `toml:"dpu"`
	Metrics struct {
		Listen string `toml:"listen"`
	} `toml:"metrics"`
	Node []struct {
		Tunnel  netip.Addr     `toml:"tunnel"`
		Subnets []netip.Prefix `toml:"subnets"`
	} `toml:"node"`
	Policy struct {
		Default string `toml:"default"`
		Rule    []struct {
			Action   string       `toml:"action"`
			From     netip.Prefix `toml:"from"`
			To       netip.Prefix `toml:"to"`
			Protocol string       `toml:"protocol"`
			Ports    []uint16     `toml:"ports"`
		} `toml:"rule"`
	} `toml:"policy"`

	nodes  []flows.Node
	policy flows.Policy
}

// Load reads a configuration file and checks it.
func Load(path string) (*Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	c, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// Parse reads the text of a configuration file and checks it.
func Parse(text []byte) (*Config, error) {
	c := &Config{}
	d := toml.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(c); err != nil {
		var strict *toml.StrictMissingError
		var where *toml.DecodeError
		switch {
		case errors.As(err, &strict) && len(strict.Errors) > 0:
			line, _ := strict.Errors[0].Position()
			return nil, fmt.Errorf("line %d: unknown key %v", line, strict.Errors[0].Key())
		case errors.As(err, &where):
			line, _ := where.Position()
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		return nil, err
	}
	if _, err := dpu.ParseEndpoint(c.DPU.Endpoint); err != nil {
		return nil, fmt.Errorf("[dpu]: %w", err)
	}
	if l := c.Metrics.Listen; l != "" {
		if _, _, err := net.SplitHostPort(l); err != nil {
			return nil, fmt.Errorf("[metrics] listen %q is no ADDR:PORT", l)
		}
	}
	return c, errors.Join(c.readNodes(), c.readPolicy())
}

func (c *Config) readNodes() error {
	tunnels := map[netip.Addr]bool{}
	var all []netip.Prefix
	for _, n := range c.Node {
		if !n.Tunnel.IsValid() || len(n.Subnets) == 0 {
			return errors.New("[[node]]: tunnel or subnets is missing")
		}
		if tunnels[n.Tunnel] {
			return fmt.Errorf("[[node]]: two nodes have the tunnel %s", n.Tunnel)
		}
		tunnels[n.Tunnel] = true
		for _, s := range n.Subnets {
			if s != s.Masked() {
				return fmt.Errorf("[[node]]: the subnet %s has bits behind its length; write %s", s, s.Masked())
			}
			for _, other := range all {
				if s.Overlaps(other) {
					return fmt.Errorf("[[node]]: the subnets %s and %s overlap", s, other)
				}
			}
			all = append(all, s)
		}
		c.nodes = append(c.nodes, flows.Node{Tunnel: n.Tunnel, Subnets: n.Subnets})
	}
	if len(c.nodes) == 0 {
		return errors.New("there is no [[node]]; write one for each node, this one too")
	}
	return nil
}

func (c *Config) readPolicy() error {
	allows := func(word, where string) (bool, error) {
		if word != "allow" && word != "deny" {
			return false, fmt.Errorf("%s %q is unknown; write allow or deny", where, word)
		}
		return word == "allow", nil
	}
	if c.Policy.Default == "" {
		c.Policy.Default = "allow"
	}
	var err error
	if c.policy.Allow, err = allows(c.Policy.Default, "[policy] default"); err != nil {
		return err
	}
	if n := len(c.Policy.Rule); n > flows.RulesMax {
		return fmt.Errorf("[[policy.rule]]: %d rules, and there can be %d", n, flows.RulesMax)
	}
	for i, r := range c.Policy.Rule {
		allow, err := allows(r.Action, "action")
		rule := flows.Rule{Allow: allow, From: r.From, To: r.To, Protocol: r.Protocol, Ports: r.Ports}
		if err == nil {
			err = rule.Check()
		}
		if err != nil {
			return fmt.Errorf("[[policy.rule]] %d: %w", i+1, err)
		}
		c.policy.Rules = append(c.policy.Rules, rule)
	}
	return nil
}
