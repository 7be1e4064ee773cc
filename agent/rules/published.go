package rules

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/policy"
)

// CheckPublished refuses a rule that moves a server away from a port at which the engine publishes
// it (docker run -p). The engine leads connections to the container's own address. Nobody would
// listen there, and no error would show that.
func CheckPublished(r *api.Registration, rules *Rules) error {
	if r.LoopbackOnly {
		return nil
	}
	for _, published := range r.Published {
		text, word, _ := strings.Cut(published, "/")
		port, err := strconv.ParseUint(text, 10, 16)
		_, protocol := policy.CutProtocol("/" + word)
		if err != nil || protocol == 0 {
			continue // there are no rules for such protocols as SCTP
		}
		moves, stays := movedBy(rules.Ingress, protocol, uint16(port))
		if moves == nil || stays {
			continue
		}
		advice := "leave out -p"
		if protocol == policy.TCP {
			advice += ", or write +own before the \"=\" of the rule"
		}
		return fmt.Errorf("%w -i %q: %s publishes port %s of the container (-p), and with this rule nobody listens there; %s",
			policy.ErrRule, moves, r.Engine, published, advice)
	}
	return nil
}

// movedBy returns a rule that moves servers of a port away from the container's own addresses, or
// nil. stays says that a rule lets the server listen there too.
func movedBy(list []policy.Ingress, protocol policy.Protocol, port uint16) (moves *policy.Ingress, stays bool) {
	for _, r := range list {
		if r.Addr.IsLoopback() || !r.Ports.Contains(port) || !r.Protocol.Meets(protocol) {
			continue
		}
		moves = &r
		stays = stays || r.Own && protocol == policy.TCP
	}
	return moves, stays
}
