{{- define "nri-pin.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The image with what speaks to the cluster in it, deploy/Containerfile --target cluster */}}
{{- define "nri-pin.clusterImage" -}}
{{- $image := .Values.clusterImage -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "nri-pin.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "nri-pin.selector" . }}
{{- end -}}

{{- define "nri-pin.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The configuration of one node group, as the agent's file: (dict "root" $ "config" GROUP_CONFIG) */}}
{{- define "nri-pin.config" -}}
{{- $root := .root -}}
{{- $fixed := dict "sysfsRoot" "/host" "cgroupRoot" "/host/sys/fs/cgroup" "logFormat" "json" -}}
{{- $config := mergeOverwrite $fixed (deepCopy ($root.Values.config | default dict)) (deepCopy (.config | default dict)) -}}
{{- $_ := set $config "neverRefuse" (append ($config.neverRefuse | default list) $root.Release.Namespace | uniq) -}}
{{- if $root.Values.metrics.enabled -}}
{{- $_ := set $config "metricsBindAddress" (printf ":%d" (int $root.Values.metrics.port)) -}}
{{- end -}}
{{- if $root.Values.healthz.enabled -}}
{{- $_ := set $config "healthProbeBindAddress" (printf ":%d" (int $root.Values.healthz.port)) -}}
{{- end -}}
{{ toYaml $config }}
{{- end -}}

{{/* No two ports of the agent's pod are the same */}}
{{- define "nri-pin.checkPorts" -}}
{{- $ports := dict -}}
{{- if .Values.healthz.enabled }}{{ $_ := set $ports "healthz.port" (int .Values.healthz.port) }}{{ end -}}
{{- if .Values.metrics.enabled }}{{ $_ := set $ports "metrics.port" (int .Values.metrics.port) }}{{ end -}}
{{- if .Values.exporter.enabled -}}
{{- with .Values.exporter.metricsPort }}{{ $_ := set $ports "exporter.metricsPort" (int .) }}{{ end -}}
{{- with .Values.exporter.healthzPort }}{{ $_ := set $ports "exporter.healthzPort" (int .) }}{{ end -}}
{{- end -}}
{{- if ne (len (values $ports)) (len (uniq (values $ports))) -}}
{{- fail (printf "each port of the agent's pod once, found %s; choose others" (toJson $ports)) -}}
{{- end -}}
{{- end -}}

{{/* The agent writes into the folder of its state, so no other program may use that folder */}}
{{- define "nri-pin.checkPaths" -}}
{{- $paths := dict "agent.hostPaths.stateDir" .Values.agent.hostPaths.stateDir "agent.hostPaths.nriSocketDir" .Values.agent.hostPaths.nriSocketDir -}}
{{- $system := "^/((etc|usr|bin|sbin|lib|lib32|lib64|boot|dev|proc|sys|root|home)(/.*)?|[^/]+|var/[^/]+|(var/)?run/(systemd|containerd|crio|docker|user|dbus|udev)(/.*)?|var/lib/(kubelet|containerd|containers|docker|etcd|cni)(/.*)?)/?$" -}}
{{- range $name, $path := $paths -}}
{{- if regexMatch $system $path -}}
{{- fail (printf "%s: %s is a folder of the system; name one of nri-pin, such as /run/nri-pin, or of NRI, such as /var/run/nri" $name $path) -}}
{{- end -}}
{{- end -}}
{{- if eq (trimSuffix "/" .Values.agent.hostPaths.stateDir) (trimSuffix "/" .Values.agent.hostPaths.nriSocketDir) -}}
{{- fail "agent.hostPaths: stateDir and nriSocketDir are one folder; the exporter would see the runtime's socket" -}}
{{- end -}}
{{- end -}}
