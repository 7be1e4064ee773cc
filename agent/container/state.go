package container

import (
	"fmt"
	"slices"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// State is what a process needs, beside the Spec, to take over a container.
type State struct {
	PID     int    `json:"pid"` // of the first program; 0: there was none yet
	Started string `json:"started"`
	Cgroup  string `json:"cgroup"`
	// Endpoints are the container's endpoints. Numbered has their names, each at the endpoint's
	// number in the kernel's tables.
	Endpoints []string `json:"endpoints"`
	Numbered  []string `json:"numbered"`
	// From has the sources of the ingress rules of the Spec, in their order; empty: those of the
	// Spec.
	From []string `json:"from,omitempty"`
	// Own are the numbers of ingress rules of the Spec whose servers listen at their own address too where
	// those of the Spec do not, or the other way round.
	Own []int `json:"own,omitempty"`
	// Added are ingress rules that the Spec does not have. Their numbers follow those of the Spec.
	Added []RuleText `json:"added,omitempty"`
	// Gone are the numbers of ingress rules that the container does not have any more.
	Gone []int `json:"gone,omitempty"`
	// Replaced says that rules were replaced: then the container has the egress rules Outwards, and not those
	// of the Spec, and if it is Unnamed, it has no name rules.
	Replaced bool       `json:"replaced,omitempty"`
	Outwards []RuleText `json:"outwards,omitempty"`
	Unnamed  bool       `json:"unnamed,omitempty"`
	// Resolvers are asked for names in the place of those of the Spec, if there are any. NoNames says that none
	// is asked.
	Resolvers []string `json:"resolvers,omitempty"`
	NoNames   bool     `json:"noNames,omitempty"`
	// Moved are nameable endpoints that have had another definition.
	Moved []MovedName `json:"moved,omitempty"`
	// Untrapped says that connect(2), sends and listen(2) of its programs are not trapped, and that
	// its loopback is on the host (graft.NeedsTraps). Its filters do not change, so Untrapped does
	// not change.
	Untrapped bool `json:"untrapped"`
}

// RuleText is a rule with its endpoint, as texts.
type RuleText struct {
	Rule     string `json:"rule"`
	Endpoint string `json:"endpoint"`
}

// MovedName is the name of a nameable endpoint. Sockets that were bound by it have numbers (enforcer.Name). Those with
// a number up to Last were bound when the endpoint had another definition.
type MovedName struct {
	Name string `json:"name"`
	Last uint32 `json:"last"`
}

// note writes the rules into a state.
func (g *given) note(s *State, spec *Spec) {
	s.From, s.Own, s.Added, s.Gone, s.Outwards, s.Replaced = nil, nil, nil, nil, nil, g.replaced
	g.noteResolvers(s, spec)
	var from []string
	changed := false
	for i, r := range g.ingress {
		if g.gone[i] {
			s.Gone = append(s.Gone, r.Number)
		}
		if i >= len(spec.Ingress) {
			s.Added = append(s.Added, RuleText{r.String(), r.Endpoint.String()})
			continue
		}
		if r.Own != spec.Ingress[i].Own {
			s.Own = append(s.Own, r.Number)
		}
		from = append(from, r.From.String())
		changed = changed || from[i] != spec.Ingress[i].From.String()
	}
	if changed {
		s.From = from
	}
	if !g.replaced {
		return
	}
	for _, r := range g.egress {
		s.Outwards = append(s.Outwards, RuleText{r.String(), r.Endpoint.String()})
	}
	s.Unnamed = len(g.names) == 0 && len(spec.NameRules) > 0
}

// noteResolvers writes into a state which resolvers are asked, if they are others than those of the Spec.
func (g *given) noteResolvers(s *State, spec *Spec) {
	s.Resolvers, s.NoNames = nil, false
	if spec.Translation == nil || slices.Equal(g.resolvers, spec.Translation.Resolvers) {
		return
	}
	s.NoNames = len(g.resolvers) == 0
	for _, r := range g.resolvers {
		s.Resolvers = append(s.Resolvers, r.String())
	}
}

// restoreResolvers reads what noteResolvers has written.
func (g *given) restoreResolvers(s *State) error {
	if s.NoNames || len(s.Resolvers) > 0 {
		g.resolvers = nil
	}
	for _, text := range s.Resolvers {
		r, err := rules.ParseResolver(text)
		if err != nil {
			return err
		}
		g.resolvers = append(g.resolvers, r)
	}
	return nil
}

// restored returns the rules of a state.
func restored(s *State, spec *Spec) (*given, error) {
	g := begin(&spec.Rules)
	if len(s.From) > 0 && len(s.From) != len(g.ingress) {
		return nil, fmt.Errorf("sources of %d ingress rules, and there are %d", len(s.From), len(g.ingress))
	}
	for i, text := range s.From {
		from, err := policy.ParseFrom(text)
		if err != nil {
			return nil, err
		}
		g.ingress[i].From = from
	}
	for _, n := range s.Own {
		if n < 1 || n > len(g.ingress) {
			return nil, fmt.Errorf("ingress rule %d of the container's start has changed, and there are %d", n, len(g.ingress))
		}
		g.ingress[n-1].Own = !g.ingress[n-1].Own
	}
	for _, t := range s.Added {
		set, err := t.endpoints()
		if err != nil {
			return nil, err
		}
		p := policy.Parser{Endpoints: set, Translated: spec.Translation != nil}
		list, err := p.Ingress(t.Rule)
		if err != nil {
			return nil, err
		}
		g.add(list[0])
	}
	for _, n := range s.Gone {
		if n < 1 || n > len(g.gone) {
			return nil, fmt.Errorf("ingress rule %d has gone, and there are %d", n, len(g.gone))
		}
		g.drop(n - 1)
	}
	if err := g.restoreResolvers(s); err != nil {
		return nil, err
	}
	if g.replaced = s.Replaced; !g.replaced {
		return g, nil
	}
	g.egress = nil
	for _, t := range s.Outwards {
		set, err := t.endpoints()
		if err != nil {
			return nil, err
		}
		r, err := policy.ParseEgress(t.Rule, set)
		if err != nil {
			return nil, err
		}
		g.egress = append(g.egress, r)
	}
	if s.Unnamed {
		g.names = nil
	}
	return g, nil
}

// endpoints returns a set with the rule's endpoint.
func (t RuleText) endpoints() (*endpoint.Set, error) {
	var set endpoint.Set
	ep, err := endpoint.Parse(t.Endpoint)
	if err == nil {
		err = set.Add(ep)
	}
	return &set, err
}
