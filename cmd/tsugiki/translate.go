package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/tsugiki/tsugiki/agent/rules"
	runner "github.com/tsugiki/tsugiki/agent/run"
	"github.com/tsugiki/tsugiki/translate/dns"
)

// translateFlags are the flags of tsugiki run for programs that know IPv4 only.
type translateFlags struct {
	on        bool
	ipv6      string
	resolvers []string
	names     []string
	ftp, sip  string
}

func (f *translateFlags) register(flags *pflag.FlagSet) {
	flags.BoolVar(&f.on, "translate", false, "let COMMAND, which may know IPv4 only, reach IPv6 hosts, and -i 0.0.0.0:PORT=[ADDR]:PORT serve IPv6")
	flags.StringVar(&f.ipv6, "ipv6", "", "with --translate, the IPv6 address of the host from which COMMAND connects (default the host's choice)")
	flags.StringArrayVar(&f.names, "name-rule", nil, "with --translate, hosts by their names, as PATTERN[:PORT[-PORT]][/tcp|/udp]: COMMAND reaches the addresses that are answered when it asks for a name that matches, and no others, unless -e covers them; may be repeated")
	flags.StringVar(&f.ftp, "ftp", "", "with --translate, the ports of FTP's control connections, as PORT[,PORT]..., or none (default 21)")
	flags.StringVar(&f.sip, "sip", "", "with --translate, the TCP ports of SIP, as PORT[,PORT]..., or none (default none)")
	flags.StringArrayVar(&f.resolvers, "dns", nil, "host: let COMMAND ask the name servers of /etc/resolv.conf that are on the host's loopback, such as 127.0.0.53; or with --translate, a resolver to ask for names, as [ADDR]:PORT, may be repeated (default those of /etc/resolv.conf)")
}

// rules reads the rules.
func (f *runFlags) rules() (rules.Rules, *rules.Translation, error) {
	t := &f.translation
	if !t.on {
		if t.ipv6 != "" || t.ftp != "" || t.sip != "" || len(t.resolvers) > 0 || len(t.names) > 0 {
			return rules.Rules{}, nil, errors.New("--ipv6, --name-rule, --ftp, --sip, and --dns with an address, are for --translate, which is missing")
		}
		r, err := rules.Parse(f.texts())
		return r, nil, err
	}
	if f.netns != "new" {
		return rules.Rules{}, nil, errors.New("--translate needs a new network namespace; leave --netns out")
	}
	var from netip.Addr
	var err error
	if t.ipv6 != "" {
		if from, err = netip.ParseAddr(t.ipv6); err != nil || !from.Is6() || from.Is4In6() || from.Zone() != "" {
			return rules.Rules{}, nil, fmt.Errorf("--ipv6 %q is no IPv6 address", t.ipv6)
		}
	}
	r, err := rules.ParseTranslated(f.texts(), from)
	if err != nil {
		return r, nil, err
	}
	resolvers, err := t.parseResolvers()
	if err != nil {
		return r, nil, err
	}
	ftp, err := parsePorts("--ftp", t.ftp)
	if err != nil {
		return r, nil, err
	}
	sip, err := parsePorts("--sip", t.sip)
	return r, &rules.Translation{Resolvers: resolvers, FTP: ftp, SIP: sip}, err
}

// parsePorts reads the value of --ftp or --sip. nil is the default.
func parsePorts(flag, text string) (list []uint16, err error) {
	switch text {
	case "":
		return nil, nil
	case "none":
		return []uint16{}, nil
	}
	for word := range strings.SplitSeq(text, ",") {
		port, err := strconv.ParseUint(word, 10, 16)
		if err != nil || port == 0 {
			return nil, fmt.Errorf("%s %q is not of the form PORT[,PORT]..., or none", flag, text)
		}
		list = append(list, uint16(port))
	}
	return list, nil
}

const resolvConf = "/etc/resolv.conf"

func (f *translateFlags) parseResolvers() (list []netip.AddrPort, err error) {
	if len(f.resolvers) == 0 {
		return dns.Resolvers(resolvConf)
	}
	for _, text := range f.resolvers {
		if strings.HasPrefix(text, ":") {
			text = "[::1]" + text
		}
		r, err := netip.ParseAddrPort(text)
		if err != nil || r.Port() == 0 {
			return nil, fmt.Errorf("--dns %q is not of the form [ADDR]:PORT", text)
		}
		list = append(list, r)
	}
	return list, nil
}

// startTranslated starts a container without an agent, which does not translate.
func (f *runFlags) startTranslated(spec runner.Program) (container, error) {
	if f.agent != "" && f.agent != "none" {
		return nil, errors.New("the agent does not translate IPv4; leave --agent out")
	}
	return runner.Start(spec)
}
