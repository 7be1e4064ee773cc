// Package endpoint owns the names under which containers reach the host's
// network: what an endpoint is, how it is written, and which ones a container
// has.
//
// It opens no socket and reads no namespace; it needs no privilege and no
// particular kernel. The model and its grammar are those of `ip graft` in
// Nakamura et al., "Grafting Sockets for Fast Container Networking" (ANCS 2018).
package endpoint

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// NameMax is the longest name in bytes: AF_GRAFT's 16, less the final zero.
const NameMax = 15

// PathMax is the longest path of a unix endpoint in bytes: sun_path's 108,
// less the final zero (unix(7)).
const PathMax = 107

var (
	// ErrGrammar is wrapped by every error about how an endpoint is written.
	ErrGrammar = errors.New("bad endpoint")
	// ErrUnknown is wrapped where a name is used that no endpoint has.
	ErrUnknown = errors.New("unknown endpoint")
)

// Type is the address family of an endpoint.
type Type int

// The types, with the names that the grammar gives them.
const (
	IPv4 Type = iota + 1
	IPv6
	Unix
)

func (t Type) String() string {
	switch t {
	case IPv4:
		return "ipv4"
	case IPv6:
		return "ipv6"
	case Unix:
		return "unix"
	}
	return "type " + strconv.Itoa(int(t))
}

// PortRange is a range of ports, both ends included. The zero value, 0 to 0,
// means "dynamic" in an endpoint: whichever port the program or the host takes.
type PortRange struct {
	First, Last uint16
}

// Contains tells whether a port is in the range.
func (r PortRange) Contains(port uint16) bool { return r.First <= port && port <= r.Last }

// Size is the number of ports in the range, 1 to 65536.
func (r PortRange) Size() int { return int(r.Last) - int(r.First) + 1 }

func (r PortRange) String() string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// ParsePortRange reads PORT or PORT-PORT, 0 to 65535, the first not above the
// last.
func ParsePortRange(s string) (PortRange, error) {
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	lo, err1 := strconv.ParseUint(first, 10, 16)
	hi, err2 := strconv.ParseUint(last, 10, 16)
	if err1 != nil || err2 != nil || lo > hi {
		return PortRange{}, fmt.Errorf("%q is neither a port (0-65535) nor a range FIRST-LAST", s)
	}
	return PortRange{uint16(lo), uint16(hi)}, nil
}

// Endpoint is a name for a host address.
type Endpoint struct {
	Name string
	Type Type
	// Addr is the host's address, of the family that Type says. The
	// unspecified one leaves the choice to the host, as for any of its own
	// processes. Not for Unix.
	Addr netip.Addr
	// Port is the host's port or ports; the zero value is dynamic.
	Port PortRange
	// Path is the socket's path in the host's file system. Only for Unix.
	Path string
	// Netns is the namespace that the address is in, as netns.Open takes it;
	// empty is the host's.
	Netns string
	// Nameable lets programs name the endpoint themselves (AF_GRAFT). A socket that
	// is bound by name connects and sends through the endpoint to every destination
	// that is not special, and listens at it, whatever the rules say.
	Nameable bool
}

// Dynamic tells whether the endpoint takes whichever port is asked for.
func (e *Endpoint) Dynamic() bool { return e.Port == PortRange{} }

// String is the endpoint as Parse reads it.
func (e *Endpoint) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s type %s", e.Name, e.Type)
	if e.Type == Unix {
		fmt.Fprintf(&b, " path %s", e.Path)
	} else {
		port := "dynamic"
		if !e.Dynamic() {
			port = e.Port.String()
		}
		fmt.Fprintf(&b, " addr %s port %s", e.Addr, port)
	}
	if e.Netns != "" {
		fmt.Fprintf(&b, " netns %s", e.Netns)
	}
	if e.Nameable {
		b.WriteString(" " + nameable)
	}
	return b.String()
}

// Parse reads an endpoint:
//
//	NAME type ipv4|ipv6 addr ADDR port PORT|FIRST-LAST|dynamic [netns PID|NAME] [nameable]
//	NAME type unix path PATH [netns PID|NAME] [nameable]
//
// "any" is taken for "dynamic". A path may hold no white space.
func Parse(s string) (*Endpoint, error) {
	e, err := parse(strings.Fields(s))
	if err != nil {
		return nil, fmt.Errorf("%w %q: %w", ErrGrammar, s, err)
	}
	return e, nil
}

// ParseAll reads an endpoint as Parse does, or two at once, of the same ports:
//
//	NAME type ip addr ADDR addr6 ADDR6 port PORT|FIRST-LAST|dynamic [netns PID|NAME] [nameable]
//
// They are NAME.4 with the IPv4 address ADDR, and NAME.6 with the IPv6 address ADDR6.
func ParseAll(s string) ([]*Endpoint, error) {
	words := strings.Fields(s)
	at := slices.Index(words, "addr6")
	if at < 1 || at+1 == len(words) || !slices.Contains(words, "ip") {
		e, err := Parse(s)
		return []*Endpoint{e}, err
	}
	addr6 := words[at+1]
	words = slices.Delete(words, at, at+2)
	var all []*Endpoint
	for _, f := range []struct{ suffix, typ, addr string }{{Suffix4, "ipv4", ""}, {Suffix6, "ipv6", addr6}} {
		one := slices.Clone(words)
		one[0] += f.suffix
		for i := 1; i+1 < len(one); i++ {
			switch {
			case one[i] == "type" && one[i+1] == "ip":
				one[i+1] = f.typ
			case one[i] == "addr" && f.addr != "":
				one[i+1] = f.addr
			}
		}
		e, err := parse(one)
		if err != nil {
			return nil, fmt.Errorf("%w %q: %w", ErrGrammar, s, err)
		}
		all = append(all, e)
	}
	return all, nil
}

// The ends of the names of two endpoints that a rule names as one.
const (
	Suffix4 = ".4"
	Suffix6 = ".6"
)

// ParseWords reads an endpoint whose words come from somewhere else than a line,
// and of which none can be taken for more than one.
func ParseWords(words []string) (*Endpoint, error) {
	for _, w := range words {
		if w == "" || strings.ContainsFunc(w, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
			return nil, fmt.Errorf("%w: %q is not one word", ErrGrammar, w)
		}
	}
	e, err := parse(words)
	if err != nil {
		return nil, fmt.Errorf("%w %q: %w", ErrGrammar, strings.Join(words, " "), err)
	}
	return e, nil
}

func parse(words []string) (*Endpoint, error) {
	if len(words) == 0 {
		return nil, errors.New("it is empty; write NAME type ipv4|ipv6 addr ADDR port PORT|dynamic, or NAME type unix path PATH")
	}
	e := &Endpoint{Name: words[0]}
	if err := checkName(e.Name); err != nil {
		return nil, err
	}
	given := map[string]string{}
	rest := words[1:]
	for ; len(rest) > 0; rest = rest[2:] {
		key := rest[0]
		switch key {
		case "type", "addr", "port", "path", "netns":
		case nameable:
			if len(rest) > 1 {
				return nil, fmt.Errorf("%q is the last word and has no value", nameable)
			}
			e.Nameable = true
			return e, e.set(given)
		default:
			return nil, fmt.Errorf("unknown word %q; the words are type, addr, port, path, netns and nameable", key)
		}
		if len(rest) == 1 {
			return nil, fmt.Errorf("%q needs a value", key)
		}
		if _, twice := given[key]; twice {
			return nil, fmt.Errorf("%q is given twice", key)
		}
		given[key] = rest[1]
	}
	return e, e.set(given)
}

// nameable is the one word of the grammar that has no value.
const nameable = "nameable"

func (e *Endpoint) set(given map[string]string) error {
	e.Netns = given["netns"]
	switch given["type"] {
	case "ipv4":
		e.Type = IPv4
	case "ipv6":
		e.Type = IPv6
	case "unix":
		e.Type = Unix
		return e.setPath(given)
	case "":
		return errors.New(`"type" is missing: ipv4, ipv6 or unix`)
	default:
		return fmt.Errorf("unknown type %q: ipv4, ipv6 or unix; ip is for a rule of both families, with addr and addr6", given["type"])
	}
	return e.setAddr(given)
}

func checkName(name string) error {
	if len(name) > NameMax {
		return fmt.Errorf("the name %q has %d bytes, at most %d fit", name, len(name), NameMax)
	}
	if name == "." || name == ".." {
		return fmt.Errorf("the name %q is a path's, choose another", name)
	}
	for _, c := range name {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.ContainsRune("._-", c):
		default:
			return fmt.Errorf("the name %q holds %q; letters, digits, '.', '_' and '-' may be used", name, c)
		}
	}
	return nil
}

func (e *Endpoint) setPath(given map[string]string) error {
	e.Path = given["path"]
	switch {
	case e.Path == "":
		return errors.New(`"path" is missing`)
	case given["addr"] != "" || given["port"] != "":
		return errors.New("a unix endpoint has a path, no addr and no port")
	case len(e.Path) > PathMax:
		return fmt.Errorf("the path has %d bytes, at most %d fit", len(e.Path), PathMax)
	case !strings.HasPrefix(e.Path, "/"):
		return fmt.Errorf("the path %q must start with a slash", e.Path)
	}
	return nil
}

func (e *Endpoint) setAddr(given map[string]string) error {
	if given["path"] != "" {
		return fmt.Errorf("an %s endpoint has addr and port, no path", e.Type)
	}
	if given["addr"] == "" {
		return errors.New(`"addr" is missing`)
	}
	addr, err := netip.ParseAddr(given["addr"])
	if err != nil || addr.Zone() != "" || addr.Is4In6() || addr.Is4() != (e.Type == IPv4) {
		return fmt.Errorf("%q is no %s address", given["addr"], e.Type)
	}
	e.Addr = addr
	switch port := given["port"]; port {
	case "":
		return errors.New(`"port" is missing: a port, a range FIRST-LAST, or dynamic`)
	case "dynamic", "any":
	default:
		if e.Port, err = ParsePortRange(port); err != nil {
			return err
		}
	}
	return nil
}
