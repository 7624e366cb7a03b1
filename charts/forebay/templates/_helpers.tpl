{{- define "forebay.name" -}}
{{- if contains "forebay" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-forebay" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "forebay.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "forebay.name" .) -}}
{{- end -}}

{{- define "forebay.selector" -}}
app.kubernetes.io/name: forebay
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "forebay.labels" -}}
{{ include "forebay.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* Takes a list: the root context and one entry of images. */ -}}
{{- define "forebay.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default $root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- /* What the operator does to objects in the namespaces that it serves. */ -}}
{{- define "forebay.namespacedRules" -}}
- apiGroups: [forebay.dev]
  resources: [modeldeployments, models, rolloutactions]
  verbs: [get, list, watch]
- apiGroups: [forebay.dev]
  resources: [rollouts]
  verbs: [create, delete, get, list, patch, watch]
- apiGroups: [forebay.dev]
  resources: [modeldeployments/status, models/status, rolloutactions/status, rollouts/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [configmaps, serviceaccounts, services]
  verbs: [create, delete, get, list, patch, watch]
- apiGroups: [apps]
  resources: [controllerrevisions, deployments]
  verbs: [create, delete, get, list, patch, watch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create, delete, get, list, patch, watch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [create, delete, get, list, patch, watch]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [rolebindings, roles]
  verbs: [create, delete, get, list, patch, watch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [list]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
# The operator gives routers this permission, so it must hold it itself.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
{{- end -}}

{{- /* What it does to objects outside of namespaces, and pods on nodes of a GPUClass. */ -}}
{{- define "forebay.clusterRules" -}}
- apiGroups: [forebay.dev]
  resources: [enginereleases, gpuclasses]
  verbs: [get, list, watch]
- apiGroups: [forebay.dev]
  resources: [enginereleases/status, gpuclasses/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
{{- end -}}
