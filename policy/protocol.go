package policy

import (
	"fmt"
	"strings"
)

// Protocol is a transport protocol that a rule is for; 0 stands for both.
type Protocol int

// The protocols, with the numbers of IP (IPPROTO_TCP and IPPROTO_UDP).
const (
	TCP Protocol = 6
	UDP Protocol = 17
)

// String is the protocol as it follows the ports of a rule.
func (p Protocol) String() string {
	switch p {
	case 0:
		return ""
	case TCP:
		return "/tcp"
	case UDP:
		return "/udp"
	}
	return fmt.Sprintf("/%d", int(p))
}

// Meets tells whether a rule for one protocol speaks of what a rule for the other does.
func (p Protocol) Meets(other Protocol) bool { return p == 0 || other == 0 || p == other }

// CutProtocol takes "/tcp" or "/udp" off the end of a text.
func CutProtocol(s string) (rest string, p Protocol) {
	for _, p := range []Protocol{TCP, UDP} {
		if rest, is := strings.CutSuffix(s, p.String()); is {
			return rest, p
		}
	}
	return s, 0
}
