package rules

import (
	"errors"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/config"
	"github.com/tsugiki/tsugiki/policy"
)

// OfConfig returns the rules of the configuration for a container's name; false if it has none.
func OfConfig(cfg *config.Config, name string) (api.Rules, bool) {
	c := cfg.For(name)
	if c == nil {
		return api.Rules{}, false
	}
	return textsOf(c), true
}

func textsOf(c *config.Container) api.Rules {
	t := api.Rules{Mode: c.Mode, Endpoints: Plain(c.Endpoints), Ingress: Plain(c.Ingress), Egress: Plain(c.Egress)}
	t.NameRules = Plain(c.NameRules)
	if c.Translate {
		t.Translate = &api.Translate{IPv6: c.IPv6, DNS: Plain(c.DNS), Pool: c.Pool, FTP: c.FTP, SIP: c.SIP}
	}
	return t
}

// Plain returns texts of the configuration without their lines.
func Plain(list []config.Text) []string {
	var texts []string
	for _, t := range list {
		texts = append(texts, t.Text)
	}
	return texts
}

// CheckConfig checks the rules and the [[allow]] entries of a configuration, which config.Load does
// not check. Its error joins a config.Error for each wrong one, and for each container whose rules
// contradict each other.
func CheckConfig(cfg *config.Config) error {
	var errs []error
	for i := range cfg.Allows {
		_, bad := newAllowance(&cfg.Allows[i])
		for _, e := range bad {
			errs = append(errs, &config.Error{File: cfg.Path, Line: e.Line, Err: e.Err})
		}
	}
	for i := range cfg.Containers {
		c := &cfg.Containers[i]
		if !c.Translate && (c.IPv6+c.Pool+c.FTP+c.SIP != "" || len(c.DNS) > 0) {
			errs = append(errs, &config.Error{File: cfg.Path, Line: c.Line, Err: errors.New("container.ipv6, container.dns, container.pool, container.ftp and container.sip need translate = true")})
		}
		rules, bad := parse(textsOf(c))
		for _, e := range bad {
			errs = append(errs, &config.Error{File: cfg.Path, Line: lineOf(c, e), Err: e})
		}
		if len(bad) > 0 {
			continue
		}
		if _, err := policy.NewTable(rules.Ingress, rules.Egress, rules.NameRules...); err != nil {
			errs = append(errs, &config.Error{File: cfg.Path, Line: c.Line, Err: err})
		}
	}
	return errors.Join(errs...)
}

// lineOf returns the line of the text with an error.
func lineOf(c *config.Container, e *TextError) int {
	switch e.Key {
	case "endpoints":
		return c.Endpoints[e.Index].Line
	case "ingress":
		return c.Ingress[e.Index].Line
	case "egress":
		return c.Egress[e.Index].Line
	case "name rules":
		return c.NameRules[e.Index].Line
	case "dns":
		return c.DNS[e.Index].Line
	}
	return c.Line
}
