package main

import (
	"errors"

	"github.com/spf13/pflag"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/translate/dns"
)

// translateFlags are the flags of tsugiki run for programs that know IPv4 only.
type translateFlags struct {
	on        bool
	ipv6      string
	pool      string
	resolvers []string
	names     []string
	ftp, sip  string
}

func (f *translateFlags) register(flags *pflag.FlagSet) {
	flags.BoolVar(&f.on, "translate", false, "let COMMAND, which may know IPv4 only, reach IPv6 hosts, and -i 0.0.0.0:PORT=[ADDR]:PORT serve IPv6")
	flags.StringVar(&f.ipv6, "ipv6", "", "with --translate, the IPv6 address of the host from which COMMAND connects (default the host's choice)")
	flags.StringArrayVar(&f.names, "name-rule", nil, "with --translate, hosts by their names, as PATTERN[:PORT[-PORT]][/tcp|/udp]: COMMAND reaches the addresses that are answered when it asks for a name that matches, and no others, unless -e covers them; may be repeated")
	flags.StringVar(&f.ftp, "ftp", "", "with --translate, the ports of FTP's control connections, as PORT[,PORT]..., or none (default 21)")
	flags.StringVar(&f.sip, "sip", "", "with --translate, the ports of SIP, as PORT[,PORT]..., or none (default none)")
	flags.StringVar(&f.pool, "pool", "", "with --translate, the virtual IPv4 addresses of IPv6 hosts, a prefix of 15 bits (default 198.18.0.0/15)")
	flags.StringArrayVar(&f.resolvers, "dns", nil, "host: let COMMAND ask the name servers of /etc/resolv.conf that are on the host's loopback, such as 127.0.0.53; or with --translate, a resolver to ask for names, as [ADDR]:PORT, may be repeated (default those of /etc/resolv.conf)")
}

// rules reads the rules.
func (f *runFlags) rules() (rules.Rules, error) {
	t := &f.translation
	switch {
	case !t.on && (t.ipv6 != "" || t.pool != "" || t.ftp != "" || t.sip != "" || len(t.resolvers) > 0 || len(t.names) > 0):
		return rules.Rules{}, errors.New("--ipv6, --name-rule, --pool, --ftp, --sip, and --dns with an address, are for --translate, which is missing")
	case t.on && f.netns != "new":
		return rules.Rules{}, errors.New("--translate needs a new network namespace; leave --netns out")
	case t.on && len(t.resolvers) == 0:
		list, err := dns.Resolvers(resolvConf)
		if err != nil {
			return rules.Rules{}, err
		}
		for _, r := range list {
			t.resolvers = append(t.resolvers, r.String())
		}
	}
	return rules.Parse(f.texts())
}

const resolvConf = "/etc/resolv.conf"

// text returns what is asked of the agent; nil: nothing.
func (f *translateFlags) text() *api.Translate {
	if !f.on {
		return nil
	}
	return &api.Translate{IPv6: f.ipv6, DNS: f.resolvers, Pool: f.pool, FTP: f.ftp, SIP: f.sip}
}
