"""Words about words: those that say nothing in a request, and those that people and tools use for the same matter.

This is data, in English, written by hand. A word that is missing here is still found as itself. A line of
`TOPICS` is one matter; a word may stand in several; forms such as plurals are worked out by `ot.search.words`.
"""

from typing import Final

STOP_WORDS: Final = """
a about above after again against all also am an and any anyone anything are as at be because been before being
below between both but by can cannot could did do does doing down during each especially ever everything exactly
few for from further going got had has have having he her here hers herself him himself his how i if in into is
it its itself just let lot lots many maybe me might mind more most much must my myself no nor not now of off on
once only or other ought our ours ourselves out over own possible possibly quite rather really regarding same
she should so some someone something stuff such sure than that the their theirs them themselves then there these
they thing things this those through to too under until up very was way ways we well were what when where
whether which while who whom why will with within without would yes yet you your yours yourself yourselves
assist assistance curious currently give heard hello help hey hi hope idea interested interesting kindly know
like looking need okay please right seek seeking seem seems specifically tell thank thanks think today tomorrow
try trying upcoming want wanted wants wondering
aren couldn d didn doesn don hadn hasn haven isn ll m mustn o re s shan shouldn t ve wasn weren won wouldn y
"""

TOPICS: Final = """
add build compose craft create design generate make new produce
clear delete destroy drop erase purge remove uninstall
adjust alter change edit modify rename replace revise update
browse discover explore find locate lookup query search seek
download fetch get load obtain pull read retrieve
deliver forward post publish send share submit
display list present print show view
calculate calculation calculator compute determine evaluate solve
conversion convert converter exchange transform
compare comparison contrast diff difference versus
begin execute invoke launch run start trigger
abort cancel end halt kill pause stop terminate
check confirm inspect test validate validation verify
abstract describe explain overview summarise summarize summary
correct debug fix repair solve troubleshoot
follow monitor observe track tracking watch
advice advise recommend recommendation suggest suggestion tip
analyse analysis analytics analyze insight metric statistics
backup clone copy duplicate recover restore snapshot
combine concatenate join merge
arrange order rank sort
attach connect connection link
configuration configure install option preference setting setup
access allow authorize grant permission privilege role
attachment upload
alert notification notify remind reminder warn warning
bookmark favorite save

agenda appointment calendar event meeting reminder schedule
appointment book booking reservation reserve schedule
calendar date day month week year
alarm clock countdown hour minute time timer timezone
backlog issue jira reminder sprint task ticket todo
memo note notebook notion
email gmail inbox letter mail outlook
channel chat conversation discord message slack sms telegram text whatsapp
call contact mobile phone telephone
contact crm customer hubspot lead salesforce
client customer service support
doc document docx paragraph pdf word
cell column csv excel sheet spreadsheet workbook
powerpoint presentation slide
confluence documentation knowledge manual wiki
directory document drive file folder path
archive compress unzip zip
feedback opinion rating review survey

branch commit git github gitlab merge repo repository
code coding compile compiler developer program programming script software
assertion coverage test unit
dependency library module npm package pip version
changelog deploy deployment pipeline release version
bug crash debug error exception fail failure log stacktrace trace
api endpoint graphql http request rest webhook
format json parse schema xml yaml
expression match pattern regex replace
column database mysql postgres query record row schema sql sqlite table
cache key redis
broker kafka publish queue subscribe
aws azure bucket cloud gcp lambda s3
cluster container docker helm image kubernetes node pod
host instance machine server virtual vm
cpu disk hardware memory process system usage
bandwidth firewall ip latency network ping port router
dns domain host hosting
dashboard grafana metric monitoring observability prometheus
certificate cipher cryptography decrypt encrypt hash signature
authentication credential login oauth password secret token
attack exploit hack malware phishing scam scan security threat virus vulnerability
account member profile user
browser click navigate page scroll tab webpage
crawl crawler extract scrape scraper webpage
capture screenshot snapshot
internet link online page site url web website
keyword ranking seo traffic
ai chatgpt gpt llm model prompt
agent assistant bot chatbot
classifier dataset learning model neural predict prediction train training
embedding semantic similarity vector
memory recall remember storage store
device iot sensor telemetry
barcode code qr

chinese english foreign french german italian japanese korean language russian spanish translate translation
definition dictionary meaning spelling synonym thesaurus vocabulary word
grammar improve paraphrase polish proofread refine rephrase rewrite
article blog content copywriting essay write writer writing
author book ebook library literature novel read
character fiction narrative novel plot story tale
poem poet poetry rhyme
inspiration motivation quotation quote saying
funny humor joke meme
article headline journalism magazine news newspaper press
academic arxiv citation journal paper publication pubmed research scholar scientific study
biography celebrity people person
encyclopedia fact knowledge wikipedia

art artist drawing exhibition gallery illustration museum painting sculpture
crop image photo photograph photography picture resize
chart diagram graph plot visualization visualize
brand design font logo
color hex palette rgb
cinema clip episode film footage movie netflix series tv video youtube
caption speech subtitle transcribe transcript transcription
audio listen podcast sound speech voice
album band chord guitar instrument lyric melody music piano playlist singer song spotify tune
concert event festival performance show theater theatre ticket
game gaming play player puzzle quiz trivia
board card chess deck dice poker
athlete basketball championship football league match nba player score soccer sport team tennis

climate forecast humidity rain snow storm sunny temperature umbrella weather wind
celsius fahrenheit temperature
beach ocean sea surf swim wave
camping hike hiking nature outdoor park trail
carbon climate emission environment pollution sustainability
animal bird cat dog pet species wildlife
agriculture crop flower garden plant tree
astronomy nasa planet satellite space star telescope
biology cell dna gene genetic genome organism protein species
atom chemical chemistry compound element molecule reaction
acceleration force gravity mass momentum motion physics speed velocity
current electric electricity energy power resistance voltage
algebra derivative equation formula integral math mathematics polynomial
angle area circle geometry perimeter radius rectangle square triangle volume
average distribution mean median probability random regression statistics variance
gram inch kilogram length measurement meter mile unit weight
ancient century empire historical history past
army battle military treaty war
census country demographic nation population
city country region state town

breakfast cook cuisine dining dinner dish eat food ingredient kitchen lunch meal recipe restaurant vegan vegetarian
bar beer cocktail coffee drink tea wine
calorie diet healthy nutrient nutrition protein vitamin weight
clinic clinical dentist disease doctor health hospital illness medical medicine patient symptom therapist treatment
dose drug medication medicine pharmacy pill prescription
exercise fitness gym muscle training workout yoga
anxiety meditation mental mindfulness sleep stress therapy wellness
emotion feeling mood sentiment
beauty cosmetics hair makeup salon skin skincare stylist
clothes clothing dress fashion outfit shoe style wear
baby child children family kid parent
birthday gift party present wedding
dating friend love partner relationship
astrology horoscope tarot zodiac
church faith god prayer religion

bank equity finance financial fund invest investment market portfolio share stock ticker trading
conversion currency dollar eur euro exchange pound rupee usd yen
bitcoin blockchain coin crypto cryptocurrency ethereum nft token wallet
credit debt interest loan mortgage repayment
accounting asset balance budget cost expense profit revenue spending
income payroll salary tax wage
bill billing charge fee invoice money pay payment paypal stripe subscription transaction transfer
claim coverage insurance policy premium
business company corporation enterprise firm industry organization startup
buy cart cheap checkout item order price product purchase sell shop shopping store
bargain coupon deal discount offer promo sale voucher
delivery order package parcel ship shipment shipping
inventory stock supplier supply warehouse
ad advertise advertisement advertising audience campaign marketing promotion
facebook follower instagram linkedin post reddit social tiktok tweet twitter
popular trend trending viral
career employment hiring interview job recruit recruiter resume vacancy
class course education exam homework learn lecture lesson school student teach teacher tutor university
attorney contract court law lawsuit lawyer legal legislation
crime criminal fraud police
candidate congress election government politics president vote

accommodation airline destination flight holiday hotel itinerary tour tourism tourist travel trip vacation visit
aircraft airline airport aviation flight plane
accommodation airbnb hotel lodging resort room stay villa
bus cab metro public railway ride station subway taxi train transit transport uber
auto automobile car dealer drive driver vehicle
direction distance driving navigate navigation route traffic
address coordinate geocode latitude location longitude map nearby place
immigration passport visa
apartment bedroom condo estate home house housing mortgage property realtor rent rental tenant villa
appliance device home light smart thermostat
"""
